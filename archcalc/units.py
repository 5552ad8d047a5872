"""Numbers with units, for people. GB is 10^9 bytes and GiB 2^30 bytes; both are always labelled."""

from __future__ import annotations


def scaled(value: float, unit: str) -> str:
    """Four significant digits with an SI prefix: `70.27 TFLOPs`."""
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def bytes_both(count: int) -> str:
    """A byte count three ways: `131,072 B = 131.1 kB = 128 KiB`."""
    for power, prefix in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count:,} B = {scaled(count, 'B')} = {count / 1024**power:.4g} {prefix}"
    return f"{count:,} B"


def duration(seconds: float) -> str:
    """Seconds as s, ms or us, four significant digits."""
    for factor, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} us"
