"""How one matrix is stored in a quantized checkpoint, and how the keys that say it are read."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import ConfigError
from archcalc.keys import Keys, shown

MOST_NAMES = 100_000  # of modules in one config


@dataclass(frozen=True)
class Scheme:
    """How one matrix of `out` rows and `in` columns is stored.

    Args:
        bits: of a weight, packed into words of `word` bits along `packed`: `in`, `out`, or `flat` over all elements.
        block: (rows, columns) that share a scale, 0 for all; `flat`: so many elements in a row share one instead.
        scale_bits: of a scale. zeros: a zero point of `bits` beside each scale, packed along the rows.
        matrix_bytes: of what a matrix has once: the scale of its scales, the scale of its input, a table of values.
        column_bytes: of what each input column has: the index of its group.
        nested: scales that share an fp32 scale of their own, where they are quantized too.
    """

    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bits: int = 32
    zeros: bool = False
    word: int = 8
    packed: str = "in"
    flat: int = 0
    matrix_bytes: int = 0
    column_bytes: int = 0
    nested: int = 0

    def stored(self, rows: int, columns: int) -> tuple[int, int, int]:
        """(bytes of packed weights, bytes of scales and the like, elements of the packed storage)."""
        per_row, lines = {"in": (columns, rows), "out": (rows, columns), "flat": (rows * columns, 1)}[self.packed]
        words = lines * _parts(per_row * self.bits, self.word)
        scales = self.matrix_bytes + self.column_bytes * columns
        if self.flat:
            count = _parts(rows * columns, self.flat)
            scales += count * self.scale_bits // 8 + (4 * _parts(count, self.nested) if self.nested else 0)
        else:
            high, wide = (
                _parts(size, step) if step else 1 for size, step in zip((rows, columns), self.block, strict=True)
            )
            scales += high * wide * self.scale_bits // 8
            scales += wide * _parts(rows * self.bits, self.word) * self.word // 8 if self.zeros else 0
        return words * self.word // 8, scales, words


def _parts(size: int, step: int) -> int:
    return -(-size // step)


def names(k: Keys, *keys: str) -> tuple[str, ...] | None:
    """The names of modules under the first of these keys that is there; None where none is."""
    k.used.update(keys)
    given = [(key, k.raw[key]) for key in keys if k.raw.get(key) is not None]
    if not given:
        return None
    key, value = given[0]
    if type(value) is not list or not all(type(name) is str and len(name) <= 200 for name in value):
        raise ConfigError(f"{k.prefix}{key}={shown(value)}: must be a list of names of modules; give strings or null")
    if len(value) > MOST_NAMES:
        raise ConfigError(f"{k.prefix}{key} of {len(value)} entries: no model has so many modules; give {MOST_NAMES}")
    for other, names in given[1:]:
        if names != value:
            raise ConfigError(f"{k.prefix}{key} with {other}: two names of one thing disagree; give only one")
    return tuple(value)


def group_size(k: Keys, default=None) -> int:
    """Input columns that share a scale; 0, written -1, for all of them."""
    if k.raw.get("group_size") == -1 and type(k.raw["group_size"]) is int:
        k.used.add("group_size")
        return 0
    return k.int("group_size") if default is None else k.int("group_size", default=default)


def one_of_bits(k: Keys, name: str, allowed: tuple[int, ...], default=None) -> int:
    value = k.int(name) if default is None else k.int(name, default=default)
    if value not in allowed:
        raise ConfigError(f"{k.prefix}{name}={value}: not understood; use one of {', '.join(map(str, allowed))}")
    return value


MXFP4 = Scheme(4, (1, 32), 8)
ALGORITHMS = {
    "FP8": Scheme(8, matrix_bytes=4),  # and the scale of the input
    "FP8_PB_WO": Scheme(8, (128, 128)),
    "NVFP4": Scheme(4, (1, 16), 8, matrix_bytes=8),  # the scale of the scales, and the scale of the input
    "W4A16_NVFP4": Scheme(4, (1, 16), 8, matrix_bytes=4),
    "MXFP8": Scheme(8, (1, 32), 8),
}
