"""What is done to the residual stream beside adding to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.errors import ConfigError
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.per_layer import PerLayerInput


@dataclass(frozen=True)
class HyperConnections:
    """Several residual streams, collapsed before a sublayer and mixed after it by weights made from the streams.

    Source: manifold-constrained hyper-connections, arXiv:2512.24880.
    """

    hc_mult: int

    def __post_init__(self):
        positive(hc_mult=self.hc_mult)

    @property
    def dims(self) -> dict[str, int]:
        """m streams (a of them made); y, the weights that mix them: m before, m after, m·m across; s, three scales."""
        streams = self.hc_mult
        return {"m": streams, "a": streams, "y": (2 + streams) * streams, "s": 3, "o": 1}

    def ops(self, name: str) -> tuple[Op, ...]:
        """Around one sublayer: the weights, the collapse before it and the mix after it."""
        return _hyper_ops(name)

    def head_ops(self, name: str) -> tuple[Op, ...]:
        """The last collapse, before the final norm."""
        return _head_ops(name)


@lru_cache(maxsize=16)
def _hyper_ops(name: str) -> tuple[Op, ...]:
    return (
        linear(f"{name}.fn", "BTmD", "mDy", "BTy", True),
        Op(f"{name}.scale", (weight("s"),), Tensor("chip", "s")),
        Op(f"{name}.collapse", (activation("BTm"), activation("BTmD")), activation("BTD")),
        Op(f"{name}.mix", (activation("BTma"), activation("BTmD")), activation("BTaD")),
    )


@lru_cache(maxsize=16)
def _head_ops(name: str) -> tuple[Op, ...]:
    return (
        Op(f"{name}.fn", (activation("BTmD"), weight("amD"), weight("a"), weight("o")), activation("BTa")),
        Op(f"{name}.collapse", (activation("BTm"), activation("BTmD")), activation("BTD")),
    )


@dataclass(frozen=True)
class Residual:
    """Changes to x + f(x), per block.

    Args:
        alpha: DeepNorm: the stream is multiplied by it before the sum, norm(alpha·x + f(x)). Source: arXiv:2203.00555.
        value_residual: this block's values are mixed with the first block's by two learned numbers. Source:
            arXiv:2410.17897.
        skip: the block adds the output of an earlier one, mirrored around the middle of the stack, times a learned
            number. Source: Bao et al. 2023, arXiv:2209.12152 (U-ViT).
        hyper: several streams.
        scalar: the block's output is multiplied by one stored number, a buffer and not a parameter.
        per_layer: a vector of the block's own for each token is mixed in at its end.
    """

    alpha: float = 1.0
    value_residual: bool = False
    skip: bool = False
    hyper: HyperConnections | None = None
    scalar: bool = False
    per_layer: PerLayerInput | None = None

    def __post_init__(self):
        if not 0 < self.alpha < float("inf"):
            raise ConfigError(f"residual alpha={self.alpha!r}: must be a positive number; 1.0 is the plain sum")

    @property
    def dims(self) -> dict[str, int]:
        found = {"o": 1, "q": 2} | (self.hyper.dims if self.hyper else {})
        return found | (self.per_layer.dims if self.per_layer else {})

    def ops(self) -> tuple[Op, ...]:
        """What a block owns for these, beside its sublayers."""
        return _residual_ops(self)


@lru_cache(maxsize=16)
def _residual_ops(residual: Residual) -> tuple[Op, ...]:
    value = (Op("value_residual", (weight("q"),), Tensor("chip", "q")),) if residual.value_residual else ()
    skip = (Op("skip", (activation("BTD"), weight("o")), activation("BTDo")),) if residual.skip else ()
    scalar = (Op("layer_scalar", (activation("BTD"), Tensor("buffer", "o")), activation("BTDo")),)
    scalar = scalar if residual.scalar else ()
    return (*value, *skip, *(residual.per_layer.ops() if residual.per_layer else ()), *scalar)
