"""Mixers of hybrid models: a short convolution, a gated linear recurrence, attention beside a state space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.attention import Attention
from archcalc.parts.recurrent import Mamba2, Recurrent, convolution


@dataclass(frozen=True)
class ShortConvolution(Recurrent):
    """A convolution over few tokens between two gates. Source: the released LFM2 configs.

    Args:
        channels: its width. conv_bias: of the convolution and of the projections around it.
    """

    channels: int
    conv_kernel: int
    conv_bias: bool = False

    @property
    def dims(self) -> dict[str, int]:
        return {"x": self.channels, "k": self.conv_kernel}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _short_ops(self, name)


@lru_cache(maxsize=64)
def _short_ops(m: ShortConvolution, name: str) -> tuple[Op, ...]:
    return (
        *(linear(f"{name}.in_proj.{part}", "BTD", "Dx", "BTx", m.conv_bias) for part in "bcx"),
        convolution(name, m.conv_bias),
        linear(f"{name}.out_proj", "BTx", "xD", "BTD", m.conv_bias),
    )


@dataclass(frozen=True)
class GatedLinearRecurrence(Recurrent):
    """A recurrence of one number a channel, with gates that mix the channels of a head; beside a gated branch.

    Source: Griffin, De et al. 2024, arXiv:2402.19427.
    """

    num_heads: int
    head_dim: int
    conv_kernel: int

    @property
    def dims(self) -> dict[str, int]:
        width = self.num_heads * self.head_dim
        heads = {"h": self.num_heads, "j": self.head_dim, "u": self.head_dim}
        return heads | {"w": width, "x": width, "k": self.conv_kernel, "κ": self.conv_kernel - 1}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _griffin_ops(name)


@lru_cache(maxsize=64)
def _griffin_ops(name: str) -> tuple[Op, ...]:
    return (
        linear(f"{name}.linear_y", "BTD", "Dw", "BTw", True),
        linear(f"{name}.linear_x", "BTD", "Dw", "BTw", True),
        Op(f"{name}.conv1d", (activation("BTx"), weight("xk"), weight("x")), activation("BTx")),
        Op(f"{name}.conv1d.state", (Tensor("state", "Bxκ"),), Tensor("chip", "Bxκ")),
        *(linear(f"{name}.{gate}_gate", "BThj", "hju", "BThu", True) for gate in ("input", "recurrent")),
        Op(f"{name}.scan", (activation("BTw"), Tensor("state", "Bw"), weight("w")), activation("BTw")),
        linear(f"{name}.linear_out", "BTw", "wD", "BTD", True),
    )


@dataclass(frozen=True)
class Both(Recurrent):
    """Attention and a state space that read the same input and are summed. Source: arXiv:2507.22448."""

    attention: Attention
    state_space: Mamba2

    @property
    def dims(self) -> dict[str, int]:
        return self.attention.dims | self.state_space.dims

    def ops(self, name: str) -> tuple[Op, ...]:
        return (*self.attention.ops(f"{name}.self_attn"), *self.state_space.ops(f"{name}.mamba"))
