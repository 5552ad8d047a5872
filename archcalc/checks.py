"""Checks that every part of a config shares."""

from __future__ import annotations

from archcalc.errors import ConfigError

LARGEST = 2**31 - 1  # no size of a real model reaches it; keeps a hostile file from asking for more


def positive(**sizes: int) -> None:
    """Raise ConfigError unless each size is an int in 1..2^31-1."""
    for name, value in sizes.items():
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise ConfigError(f"{name}={value!r}: must be a whole number from 1 to {LARGEST}; give a positive integer")


def divides(**sizes: int) -> None:
    """Raise ConfigError unless the first of two sizes divides the second: `divides(num_kv=2, num_heads=8)`."""
    (part, few), (whole, many) = sizes.items()
    if many % few:
        choices = ", ".join(str(n) for n in range(1, min(many, 1024) + 1) if many % n == 0)
        raise ConfigError(f"{part}={few}: must divide {whole}={many}; use one of {choices}")
