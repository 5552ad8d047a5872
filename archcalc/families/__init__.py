"""One module a family of config.json: how its keys become a model. The key `model_type` alone chooses it.

A module has `build(Keys) -> dict` of ModelConfig fields and, where it needs them, `ALIASES` (canonical name -> the
family's names for the same thing), `PER_STACK` (canonical name -> the encoder's and the decoder's name), `IGNORED`
(its own harmless keys) and `RELEASE` (sizes of absent keys, where the Hugging Face class defaults to a released
model). Canonical names are those of model_type llama.
"""

from importlib import import_module
from types import ModuleType

from archcalc.errors import ConfigError, nearest
from archcalc.keys import Keys, shown

# model_type -> the module that reads it.
MODULES = {
    "gpt2": "gpt2",
    "llama": "llama",
    "marian": "marian",
    "mistral": "mistral",
    "mixtral": "mixtral",
}


def family(model_type: object) -> ModuleType:
    """The module that reads this model_type; only that one is imported. Raises ConfigError if there is none."""
    if model_type is None:
        raise ConfigError("model_type: missing, and never guessed; give one that `archcalc families` lists")
    if type(model_type) is not str or model_type not in MODULES:
        hint = nearest(model_type[:60], MODULES) if type(model_type) is str else ""
        raise ConfigError(
            f"model_type={shown(model_type)}: not understood{hint}; `archcalc families` lists those that are"
        )
    return import_module("archcalc.families." + MODULES[model_type])


def reader(raw: dict, module: ModuleType, model_type: str, prefix: str = "") -> Keys:
    """A strict reader of a config under the names that its family has for things."""
    aliases, ignored = getattr(module, "ALIASES", {}), getattr(module, "IGNORED", frozenset())
    release = getattr(module, "RELEASE", {}).get(model_type)
    return Keys(raw, aliases, ignored, release=release, owner=f"model_type {model_type}", prefix=prefix)
