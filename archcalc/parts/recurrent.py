"""Mixers that keep a state of fixed size instead of keys and values: state spaces and linear attention.

A product with the state is an einsum like any other: writing it sums over the tokens of the pass, reading it over
its key axis. Mamba's first version decays every element of its state by itself, so its writing is no product and
counts 0. How many (padded, masked) products a chunked implementation adds is its own affair and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from archcalc.checks import divides, positive
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op


class Recurrent:
    """What these mixers share: every size is positive, nothing depends on a context."""

    module = "mixer"
    causal = True
    sliding_window = None

    def __post_init__(self):
        positive(**{f.name: getattr(self, f.name) for f in fields(self) if f.type == "int"})


def convolution(name: str, bias: bool) -> Op:
    """A depthwise convolution over the last k tokens, which it keeps."""
    owned = (weight("xk"),) + ((weight("x"),) if bias else ())
    return Op(f"{name}.conv1d", (activation("BTx"), Tensor("state", "Bxk"), *owned), activation("BTx"))


@dataclass(frozen=True)
class Mamba(Recurrent):
    """Selective state space of the first kind. Source: Gu and Dao 2023, arXiv:2312.00752.

    Args:
        norm: of the step, of what writes and of what reads, each by itself. Source: arXiv:2403.19887.
    """

    intermediate_size: int
    state_size: int
    conv_kernel: int
    time_step_rank: int
    bias: bool = False
    conv_bias: bool = True
    norm: Norm | None = None

    @property
    def dims(self) -> dict[str, int]:
        inner = {"w": self.intermediate_size, "x": self.intermediate_size}
        return inner | {"n": self.state_size, "k": self.conv_kernel, "p": self.time_step_rank}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _mamba_ops(self, name)


@lru_cache(maxsize=64)
def _mamba_ops(m: Mamba, name: str) -> tuple[Op, ...]:
    inputs = (activation("BTw"), activation("BTn"), activation("BTn"), Tensor("state", "Bwn"))
    normed = {"dt": "p", "b": "n", "c": "n"} if m.norm else {}
    norms = [norm_op(m.norm, f"{name}.{part}_norm", f"BT{axis}", axis) for part, axis in normed.items()]
    return (
        linear(f"{name}.in_proj.x", "BTD", "Dw", "BTw", m.bias),
        linear(f"{name}.in_proj.z", "BTD", "Dw", "BTw", m.bias),
        convolution(name, m.conv_bias),
        linear(f"{name}.x_proj.dt", "BTw", "wp", "BTp", False),
        linear(f"{name}.x_proj.b", "BTw", "wn", "BTn", False),
        linear(f"{name}.x_proj.c", "BTw", "wn", "BTn", False),
        *norms,
        linear(f"{name}.dt_proj", "BTp", "pw", "BTw", True),
        Op(f"{name}.scan", (*inputs, weight("wn"), weight("w")), activation("BTw")),  # owns A_log and D
        linear(f"{name}.out_proj", "BTw", "wD", "BTD", m.bias),
    )


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """State space with one decay a head; heads of a group share what writes and reads. Source: arXiv:2405.21060.

    Args:
        norm: of the gated output, over all heads; None for none.
        out_bias: of the last projection, where it is not `bias`.
        chunk_size: tokens that eager code takes at once; no part of a count.
        time_step_limit: the steps are cut to this range. norm_per_group: the norm is of each group by itself.
    """

    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int
    conv_kernel: int
    bias: bool = False
    conv_bias: bool = True
    norm: Norm | None = None
    out_bias: bool | None = None
    chunk_size: int = 256
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    norm_per_group: bool = False

    def __post_init__(self):
        super().__post_init__()
        divides(n_groups=self.n_groups, mamba_num_heads=self.num_heads)

    @property
    def dims(self) -> dict[str, int]:
        heads = {"g": self.n_groups, "r": self.num_heads // self.n_groups, "u": self.head_dim}
        channels = self.num_heads * self.head_dim + 2 * self.n_groups * self.state_size
        return heads | {"n": self.state_size, "k": self.conv_kernel, "x": channels}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _mamba2_ops(self, name)


@lru_cache(maxsize=64)
def _mamba2_ops(m: Mamba2, name: str) -> tuple[Op, ...]:
    parts = {"z": "gru", "x": "gru", "b": "gn", "c": "gn", "dt": "gr"}
    state, owned = Tensor("state", "Bgrun"), (weight("gr"),) * 3  # dt_bias, A_log, D
    return (
        *(linear(f"{name}.in_proj.{part}", "BTD", f"D{axes}", f"BT{axes}", m.bias) for part, axes in parts.items()),
        convolution(name, m.conv_bias),
        Op(f"{name}.write", (activation("BTgru"), activation("BTgn"), *owned), state),
        Op(f"{name}.read", (Tensor("chip", "Bgrun"), activation("BTgn")), activation("BTgru")),
        *((norm_op(m.norm, f"{name}.norm", "BTgru", "gru"),) if m.norm else ()),
        linear(f"{name}.out_proj", "BTgru", "gruD", "BTD", m.bias if m.out_bias is None else m.out_bias),
    )


@dataclass(frozen=True)
class GatedDeltaNet(Recurrent):
    """Linear attention that corrects what its state predicts, with one decay a head. Source: arXiv:2412.06464.

    `norm` is of each head's output.
    """

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    norm: Norm

    def __post_init__(self):
        super().__post_init__()
        divides(linear_num_key_heads=self.linear_num_key_heads, linear_num_value_heads=self.linear_num_value_heads)

    @property
    def dims(self) -> dict[str, int]:
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        j, u = self.linear_key_head_dim, self.linear_value_head_dim
        heads = {"i": keys, "r": values // keys, "j": j, "u": u}
        return heads | {"k": self.linear_conv_kernel_dim, "x": 2 * keys * j + values * u}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _gated_delta_ops(self, name)


def _delta_rule(name: str, key: str, value: str, state: str, owned: tuple) -> tuple[Op, Op, Op]:
    """What the state predicts for the new keys, the correction that is written, and what the queries read."""
    chip = Tensor("chip", state)
    return (
        Op(f"{name}.predict", (activation(key), Tensor("state", state)), activation(value)),
        Op(f"{name}.write", (activation(key), activation(value), *owned), chip),
        Op(f"{name}.read", (activation(key), chip), activation(value)),
    )


@lru_cache(maxsize=64)
def _gated_delta_ops(m: GatedDeltaNet, name: str) -> tuple[Op, ...]:
    parts = {"q": "ij", "k": "ij", "v": "iru", "z": "iru", "b": "ir", "a": "ir"}
    return (
        *(linear(f"{name}.in_proj.{part}", "BTD", f"D{axes}", f"BT{axes}", False) for part, axes in parts.items()),
        convolution(name, False),
        *_delta_rule(name, "BTij", "BTiru", "Bijru", (weight("ir"),) * 2),  # dt_bias and A_log
        norm_op(m.norm, f"{name}.norm", "BTiru", "u"),
        linear(f"{name}.out_proj", "BTiru", "iruD", "BTD", False),
    )


@dataclass(frozen=True)
class KimiDelta(Recurrent):
    """Gated delta rule with one decay a channel of the keys, made through a narrow matrix. Source: arXiv:2510.26692.

    `norm` is of each head's output, which is gated through a narrow matrix, too.
    """

    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int
    norm: Norm

    @property
    def dims(self) -> dict[str, int]:
        heads, width = self.linear_num_heads, self.linear_head_dim
        return {"h": heads, "j": width, "u": width, "k": self.linear_conv_kernel_dim, "x": 3 * heads * width}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _kimi_delta_ops(self, name)


@lru_cache(maxsize=64)
def _kimi_delta_ops(m: KimiDelta, name: str) -> tuple[Op, ...]:
    parts = {"q_proj": "hj", "k_proj": "hj", "v_proj": "hu", "f_a_proj": "u", "b_proj": "h", "g_a_proj": "j"}
    return (
        *(linear(f"{name}.{part}", "BTD", f"D{axes}", f"BT{axes}", False) for part, axes in parts.items()),
        linear(f"{name}.f_b_proj", "BTu", "uhj", "BThj", False),
        linear(f"{name}.g_b_proj", "BTj", "jhu", "BThu", False),
        convolution(name, False),
        *_delta_rule(name, "BThj", "BThu", "Bhju", (weight("hj"), weight("h"))),  # dt_bias and A_log
        norm_op(m.norm, f"{name}.norm", "BThu", "u"),
        linear(f"{name}.o_proj", "BThu", "huD", "BTD", False),
    )


@dataclass(frozen=True)
class LightningAttention(Recurrent):
    """Linear attention with a fixed decay a head, gated at its output. Source: arXiv:2501.08313.

    `norm` is of all heads' output as one vector. `block_size`: tokens that eager code takes at once.
    """

    num_attention_heads: int
    head_dim: int
    norm: Norm
    block_size: int = 256

    @property
    def dims(self) -> dict[str, int]:
        return {"h": self.num_attention_heads, "j": self.head_dim, "u": self.head_dim}

    def ops(self, name: str) -> tuple[Op, ...]:
        return _lightning_ops(self, name)


@lru_cache(maxsize=64)
def _lightning_ops(m: LightningAttention, name: str) -> tuple[Op, ...]:
    parts = {"q_proj": "hj", "k_proj": "hj", "v_proj": "hu", "gate_proj": "hu"}
    return (
        *(linear(f"{name}.{part}", "BTD", f"D{axes}", f"BT{axes}", False) for part, axes in parts.items()),
        Op(f"{name}.write", (activation("BThj"), activation("BThu")), Tensor("state", "Bhju")),
        Op(f"{name}.read", (activation("BThj"), Tensor("chip", "Bhju")), activation("BThu")),
        norm_op(m.norm, f"{name}.norm", "BThu", "hu"),
        linear(f"{name}.out_proj", "BThu", "huD", "BTD", False),
    )
