"""Number formats: bits of a stored weight, bytes of an activation, and the rate that the products run at."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import one_of


@dataclass(frozen=True)
class Precision:
    """`bits` of a stored number, weight or key or value, without scales; `activation_bytes` of an activation
    where weights have this format; `rate`, the entry of a device's FLOP/s that the products use."""

    bits: int
    activation_bytes: int
    rate: str

    def stored_bytes(self, elements: int) -> int:
        """Bytes of so many numbers, rounded up to a whole byte."""
        return -(-elements * self.bits // 8)


PRECISIONS = {
    "fp32": Precision(32, 4, "fp32"),
    "bf16": Precision(16, 2, "bf16"),
    "fp16": Precision(16, 2, "fp16"),
    "fp8": Precision(8, 2, "fp8"),
    "int8": Precision(8, 2, "int8"),
    "fp4": Precision(4, 2, "fp4"),  # products in 4 bits, activations rounded for them; scales come on top
    "int4": Precision(4, 2, "fp16"),  # weight-only: unpacked to 16 bits before the product
}


def precision(name: str) -> Precision:
    """Look a precision up by name; ConfigError names the known ones."""
    one_of("precision", name, PRECISIONS)
    return PRECISIONS[name]
