"""Published models by name. The rows are data: one JSON file a family, each row with the source of its numbers.

    {name: {"source": where the numbers come from,
            "checked": {"by": who counted the same config, "parameters": their count, "buffers": where there are any,
                        "differs": {"parameters" or "buffers": ours less theirs, "why": the reason}, where it does},
            "config": the config.json, without keys that no count depends on}}

`index.json` says which file has which names, so that one lookup reads one family; `python -m archcalc.presets_table`
writes it anew.
"""

from __future__ import annotations

import os

from archcalc.config import ModelConfig
from archcalc.errors import ConfigError, nearest
from archcalc.hf import config_from_keys, read_json
from archcalc.keys import shown

FOLDER = os.path.dirname(os.path.abspath(__file__))
INDEX = "index.json"


def table(file: str) -> dict[str, dict]:
    """The rows of one file, by name."""
    return read_json(os.path.join(FOLDER, file))


def files() -> list[str]:
    """The files that have rows."""
    return sorted(file for file in os.listdir(FOLDER) if file.endswith(".json") and file != INDEX)


def row(name: str) -> dict:
    """What is known of a preset: `source`, `checked` and `config`. Raises ConfigError for an unknown name."""
    for file, found in table(INDEX).items():
        if name in found:
            return table(file)[name]
    hint = nearest(name[:60], names())
    raise ConfigError(f"preset={shown(name)}: there is none of that name{hint}; `archcalc presets` lists all")


def names() -> list[str]:
    """Every preset, family by family."""
    return [name for found in table(INDEX).values() for name in found]


def source(name: str) -> str:
    """Where the numbers of a preset come from. Raises ConfigError for an unknown name."""
    return row(name)["source"]


def preset(name: str, overrides: dict | None = None) -> ModelConfig:
    """The preset of exactly this name.

    Args:
        overrides: keys to set first, as `config_from_keys` takes them.

    Raises:
        ConfigError: there is no such preset (the nearest is named, never taken), or an override is refused.

    >>> preset("llama3-8b").hidden_size
    4096
    """
    return config_from_keys(row(name)["config"], overrides, name=name)
