"""Norms. Nothing is summed over a matrix, so they count 0 FLOPs; what they own and move is counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.errors import ConfigError, one_of
from archcalc.ops import Op, activation, weight


@dataclass(frozen=True)
class Norm:
    """LayerNorm or RMSNorm with its epsilon.

    Args:
        weight: it owns a scale. bias: a LayerNorm also owns a shift.
        offset: what is added to the stored scale: 1 where checkpoints store it around zero (Gemma).
    """

    kind: str
    eps: float
    weight: bool = True
    bias: bool = True
    offset: float = 0.0

    def __post_init__(self):
        one_of("norm", self.kind, ("layernorm", "rmsnorm"))
        if not 0 < self.eps < 1:
            raise ConfigError(f"norm eps={self.eps!r}: must lie between 0 and 1; 1e-05 is usual")

    @property
    def vectors(self) -> int:
        """How many vectors it owns: scale and shift."""
        return int(self.weight) + int(self.weight and self.bias and self.kind == "layernorm")


@lru_cache(maxsize=256)
def norm_op(norm: Norm, name: str, over: str = "BTD", owned: str = "D") -> Op:
    """The norm of an activation.

    Args:
        over: the activation's axes. owned: the axes of what the norm owns.
    """
    return Op(name, (activation(over), *(weight(owned),) * norm.vectors), activation(over))
