"""One module a family of config.json: how its keys become a model. The key `model_type` alone chooses it.

A module has `ALIASES` (canonical name -> the family's names for the same thing), optionally `PER_STACK`
(canonical name -> the encoder's and the decoder's name), `IGNORED` (its own harmless keys) and
`build(Keys) -> dict` of ModelConfig fields. Canonical names are those of model_type llama.
"""

from importlib import import_module

from archcalc.errors import ConfigError, nearest
from archcalc.keys import shown

MODULES = {"gpt2": "gpt2", "llama": "llama", "marian": "marian", "mistral": "mistral", "mixtral": "mixtral"}


def family(model_type: object):
    """The module that reads this model_type; only that one is imported. Raises ConfigError if there is none."""
    known = ", ".join(MODULES)
    if model_type is None:
        raise ConfigError(f"model_type: missing, and never guessed; give one of {known}")
    if type(model_type) is not str or model_type not in MODULES:
        hint = nearest(model_type[:60], MODULES) if type(model_type) is str else ""
        raise ConfigError(f"model_type={shown(model_type)}: not understood{hint}; use one of {known}")
    return import_module("archcalc.families." + MODULES[model_type])
