"""Published models by name. The rows are data: one JSON file a family, each row with the source of its numbers."""

from __future__ import annotations

import os

from archcalc.config import ModelConfig
from archcalc.errors import ConfigError, nearest
from archcalc.hf import config_from_keys, read_json
from archcalc.keys import shown

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _tables():
    """Each file's rows in turn, read only when asked for: {name: {"source": ..., "config": {...}}}."""
    for file in sorted(os.listdir(_FOLDER)):
        if file.endswith(".json"):
            yield read_json(os.path.join(_FOLDER, file))


def _row(name: str) -> dict:
    for table in _tables():
        if name in table:
            return table[name]
    hint = nearest(name[:60], names())
    raise ConfigError(f"preset={shown(name)}: there is none of that name{hint}; use one of {', '.join(names())}")


def names() -> list[str]:
    """Every preset, family by family."""
    return [name for table in _tables() for name in table]


def source(name: str) -> str:
    """Where the numbers of a preset come from. Raises ConfigError for an unknown name."""
    return _row(name)["source"]


def preset(name: str, overrides: dict | None = None) -> ModelConfig:
    """The preset of exactly this name.

    Args:
        overrides: keys to set first, as `config_from_keys` takes them.

    Raises:
        ConfigError: there is no such preset (the nearest is named, never taken), or an override is refused.

    >>> preset("llama3-8b").hidden_size
    4096
    """
    return config_from_keys(_row(name)["config"], overrides, name=name)
