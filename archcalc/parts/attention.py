"""Softmax attention: multi-head, grouped-query, windowed, chunked, gated, with sinks or a bias by distance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import divides, positive
from archcalc.errors import ConfigError, one_of
from archcalc.ops import Mask, Op, Tensor, activation, cache, linear, weight
from archcalc.parts.disentangled import Disentangled
from archcalc.parts.norm import Norm, norm_op
from archcalc.parts.positions import Rotary


@dataclass(frozen=True)
class Attention:
    """Multi-head (K = N), grouped-query (1 < K < N) or multi-query (K = 1) attention.

    Args:
        v_head_dim: width of a value head where it is not `head_dim`.
        sliding_window: W, a query sees itself and the W - 1 tokens before it.
        attention_chunk_size: a query sees only its own chunk of so many tokens, up to itself.
        causal: false in an encoder.
        qk_norm: norm of queries and keys; `qk_norm_over` says of what and with which weights: `head` (one weight
            of H for all heads), `heads` (each head by itself, with its own weight) or `all` (all heads as one vector).
        output_gate: the output times sigmoid of a projection of the input, for every `element` or a whole `head`.
        gate_bias: of that projection; None: as the queries have one for every element, and none a head.
        output_norm: norm of all heads' outputs as one vector. Source: Wang et al. 2023, arXiv:2310.11453 (BitNet).
        sinks: one learned logit a head that takes its share of the softmax.
        logit_softcap: scores become cap·tanh(scores/cap).
        alibi: a penalty by distance, without parameters. Source: arXiv:2108.12409. alibi_scale: what it is multiplied
            by (Falcon adds it before it scales the scores).
        relative_buckets: T5's bias by distance, a table of so many buckets a head; 0 in a layer that uses the
            table of the first. The last bucket begins at relative_max_distance. Source: arXiv:1910.10683.
        values_are_keys: no projection of its own for values, which are the projected keys before their norm.
        disentangled: DeBERTa's scores by distance, beside those by content.
        shares_cache: reads the keys and values of an earlier layer and has none.
        scale: what scores are multiplied by; None: 1 / sqrt(head_dim).
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    rotary: Rotary | None = None
    sliding_window: int | None = None
    causal: bool = True
    v_head_dim: int | None = None
    attention_chunk_size: int | None = None
    qk_norm: Norm | None = None
    qk_norm_over: str = "head"
    output_gate: str | None = None
    gate_bias: bool | None = None
    sinks: bool = False
    logit_softcap: float | None = None
    alibi: bool = False
    alibi_scale: float = 1.0
    relative_buckets: int | None = None
    values_are_keys: bool = False
    shares_cache: bool = False
    disentangled: Disentangled | None = None
    output_norm: Norm | None = None
    scale: float | None = None
    relative_max_distance: int = 128

    module = "self_attn"

    def __post_init__(self):
        positive(num_attention_heads=self.num_attention_heads)
        positive(num_key_value_heads=self.num_key_value_heads, head_dim=self.head_dim)
        divides(num_key_value_heads=self.num_key_value_heads, num_attention_heads=self.num_attention_heads)
        one_of("qk_norm_over", self.qk_norm_over, ("head", "heads", "all"))
        one_of("output_gate", self.output_gate, (None, "element", "head"))
        self._check_reach()
        if self.v_head_dim is not None:
            positive(v_head_dim=self.v_head_dim)
        if self.relative_buckets is not None and self.relative_buckets != 0:
            positive(relative_attention_num_buckets=self.relative_buckets)
        if self.rotary and self.rotary.partial_rotary_factor == 1 and self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim}: rotary positions turn pairs; give an even head_dim")
        if self.logit_softcap is not None and not 0 < self.logit_softcap < float("inf"):
            raise ConfigError(f"attn_logit_softcapping={self.logit_softcap!r}: must be positive; null for none")

    def _check_reach(self) -> None:
        window, chunk = self.sliding_window, self.attention_chunk_size
        if window is not None:
            positive(sliding_window=window)
        if chunk is not None:
            positive(attention_chunk_size=chunk)
        if window and chunk:
            raise ConfigError(f"sliding_window={window} with attention_chunk_size={chunk}: a layer has one; drop one")
        if chunk and not self.causal:
            raise ConfigError(f"attention_chunk_size={chunk} with causal=False: a chunk looks back only; drop one")

    @property
    def mask(self) -> Mask:
        """Which keys a query sees."""
        if self.attention_chunk_size:
            return Mask(self.causal, "c", "chunk")
        return Mask(self.causal, "W", "window") if self.sliding_window else Mask(self.causal, None)

    @property
    def has_gate_bias(self) -> bool:
        """Whether the projection of the output gate has a bias."""
        return (self.q_bias and self.output_gate == "element") if self.gate_bias is None else self.gate_bias

    @property
    def value_axis(self) -> str:
        """The letter of a value head's width."""
        return "U" if self.v_head_dim else "H"

    @property
    def dims(self) -> dict[str, int]:
        """The axis sizes that it fixes."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        found = {"N": heads, "K": kv_heads, "G": heads // kv_heads, "H": self.head_dim}
        rest = {"W": self.sliding_window, "c": self.attention_chunk_size, "U": self.v_head_dim}
        rest |= self.disentangled.dims if self.disentangled else {"b": self.relative_buckets}
        return found | {axis: size for axis, size in rest.items() if size}

    def ops(self, name: str) -> tuple[Op, ...]:
        """Self-attention over T new tokens and S keys."""
        return _self_ops(self, name)


@lru_cache(maxsize=256)
def _self_ops(a: Attention, name: str) -> tuple[Op, ...]:
    return (
        *_query_ops(a, name),
        *(() if a.shares_cache else key_value_ops(a, name)),
        *_bias_ops(a, name),
        *(a.disentangled.ops(name) if a.disentangled else ()),
        *_products(a, name, "BSKH", f"BSK{a.value_axis}", "BKGTS", a.mask),
        *_output_ops(a, name),
    )


def cross_ops(a: Attention, name: str) -> tuple[Op, ...]:
    """Cross-attention over the queries: keys lie along X, the source, and have no mask."""
    products = _products(a, name, "BXKH", f"BXK{a.value_axis}", "BKGTX", None)
    return (*_query_ops(a, name), *products, *_output_ops(a, name))


def key_value_ops(a: Attention, name: str) -> tuple[Op, ...]:
    """What makes keys and values of T tokens and writes them to the cache."""
    u = a.value_axis
    key_norm = _qk_norm(a, f"{name}.k_norm", "K")
    key = linear(f"{name}.k_proj", "BTD", "DKH", "BTKH", a.k_bias, "chip" if key_norm else "cache")
    written = tuple(Op(op.name, (Tensor("chip", "BTKH"), *op.inputs[1:]), cache("BTKH")) for op in key_norm)
    if a.values_are_keys:
        return key, *written, Op(f"{name}.v_copy", (Tensor("chip", "BTKH"),), cache("BTKH"))
    return key, *written, linear(f"{name}.v_proj", "BTD", f"DK{u}", f"BTK{u}", a.v_bias, "cache")


def _query_ops(a: Attention, name: str) -> tuple[Op, ...]:
    query = linear(f"{name}.q_proj", "BTD", "DNH", "BTNH", a.q_bias)
    return query, *_qk_norm(a, f"{name}.q_norm", "N")


def _qk_norm(a: Attention, name: str, heads: str) -> tuple[Op, ...]:
    if not a.qk_norm:
        return ()
    return (norm_op(a.qk_norm, name, f"BT{heads}H", "H" if a.qk_norm_over == "head" else f"{heads}H"),)


def _bias_ops(a: Attention, name: str) -> tuple[Op, ...]:
    """What is added to the scores and owns parameters: they stay on the chip, so only what is owned is read."""
    found = []
    if a.relative_buckets:
        found.append(Op(f"{name}.relative_attention_bias", (weight("bN"),), Tensor("chip", "bN")))
    if a.sinks:
        found.append(Op(f"{name}.sinks", (weight("N"),), Tensor("chip", "N")))
    return tuple(found)


def _products(a: Attention, name: str, keys: str, values: str, scores: str, mask: Mask | None) -> tuple[Op, Op]:
    """Scores and context. The scores stay on the chip: every current engine fuses the two (arXiv:2205.14135)."""
    role, made = "shared" if a.shares_cache else "cache", Tensor("chip", scores)
    return (
        Op(f"{name}.scores", (activation("BTKGH"), Tensor(role, keys)), made, mask=mask),
        Op(f"{name}.context", (made, Tensor(role, values)), activation(f"BTKG{a.value_axis}"), mask=mask),
    )


def _output_ops(a: Attention, name: str) -> tuple[Op, ...]:
    u, gate = a.value_axis, ()
    if a.output_gate:
        axes = f"N{u}" if a.output_gate == "element" else "N"
        gate = (linear(f"{name}.gate_proj", "BTD", f"D{axes}", f"BT{axes}", a.has_gate_bias),)
    norm = (norm_op(a.output_norm, f"{name}.output_norm", f"BTN{u}", f"N{u}"),) if a.output_norm else ()
    return *gate, *norm, linear(f"{name}.o_proj", f"BTN{u}", f"N{u}D", "BTD", a.o_bias)
