"""Multi-head latent attention: keys and values of all heads are made from one cached latent vector a token.

Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; the indexer: DeepSeek-V3.2, arXiv:2512.02556.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.errors import ConfigError, one_of
from archcalc.ops import Mask, Op, Tensor, activation, cache, linear, weight
from archcalc.parts.norm import Norm, norm_op
from archcalc.parts.positions import Rotary

INDEX_NORM = Norm("layernorm", 1e-6)  # fixed: no config has a key for it


@dataclass(frozen=True)
class Indexer:
    """Scores every key for every query with few small heads; attention then reads only the best `index_topk` keys.

    It caches one key of `index_head_dim` a token. `shared`: it uses the choice of an earlier layer and owns nothing.
    """

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    shared: bool = False

    def __post_init__(self):
        positive(index_n_heads=self.index_n_heads, index_head_dim=self.index_head_dim, index_topk=self.index_topk)

    @property
    def dims(self) -> dict[str, int]:
        return {"I": self.index_n_heads, "Y": self.index_head_dim, "Z": self.index_topk}


@dataclass(frozen=True)
class LatentAttention:
    """Queries from a latent of `q_lora_rank` (None: straight from the input), keys and values from one of
    `kv_lora_rank`; a head has `qk_nope_head_dim` without and `qk_rope_head_dim` with rotary positions.

    Args:
        form: what a pass multiplies, with the same weights and the same cache. `expanded` makes keys and values of
            all heads from the latents of all S tokens; `absorbed` moves the queries into the latent space instead.
        bias: of the projections into the latents and out of the attention.
        norm: of both latents.
        output_gate: the output times sigmoid of a projection of the input.
        indexer: sparse attention: only chosen keys are attended to.
        scale: what scores are multiplied by; None: 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim).
    """

    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    norm: Norm
    bias: bool = False
    rotary: Rotary | None = None
    indexer: Indexer | None = None
    output_gate: bool = False
    form: str = "absorbed"
    scale: float | None = None

    module = "self_attn"
    causal = True
    sliding_window = None

    def __post_init__(self):
        positive(
            num_attention_heads=self.num_attention_heads,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
        )
        if self.q_lora_rank is not None:
            positive(q_lora_rank=self.q_lora_rank)
        if self.indexer and self.q_lora_rank is None:
            raise ConfigError("q_lora_rank=null with index_topk: the indexer reads the queries' latent; give a rank")
        one_of("form", self.form, ("absorbed", "expanded"))

    @property
    def mask(self) -> Mask:
        """Which keys a query sees: all before it, or as many as the indexer chooses."""
        return Mask(True, "Z", "topk") if self.indexer else Mask(True, None)

    @property
    def dims(self) -> dict[str, int]:
        found = {"N": self.num_attention_heads, "J": self.kv_lora_rank, "U": self.v_head_dim}
        found |= {"P": self.qk_nope_head_dim, "Q": self.qk_rope_head_dim}
        found |= {"C": self.q_lora_rank} if self.q_lora_rank else {}
        return found | (self.indexer.dims if self.indexer else {})

    def ops(self, name: str) -> tuple[Op, ...]:
        """Self-attention over T new tokens and S keys."""
        return _latent_ops(self, name)


@lru_cache(maxsize=256)
def _latent_ops(a: LatentAttention, name: str) -> tuple[Op, ...]:
    products = _absorbed(a, name) if a.form == "absorbed" else _expanded(a, name)
    gate = (linear(f"{name}.gate_proj", "BTD", "DNU", "BTNU", False),) if a.output_gate else ()
    output = linear(f"{name}.o_proj", "BTNU", "NUD", "BTD", a.bias)
    return (*_queries(a, name), *_latents(a, name), *_index_ops(a, name), *products, *gate, output)


def _queries(a: LatentAttention, name: str) -> tuple[Op, ...]:
    if a.q_lora_rank is None:
        first, source = (), "D"
    else:
        down = linear(f"{name}.q_a_proj", "BTD", "DC", "BTC", a.bias)
        first, source = (down, norm_op(a.norm, f"{name}.q_a_norm", "BTC", "C")), "C"
    return (
        *first,
        linear(f"{name}.q_b_proj.nope", f"BT{source}", f"{source}NP", "BTNP", False),
        linear(f"{name}.q_b_proj.rope", f"BT{source}", f"{source}NQ", "BTNQ", False),
    )


def _latents(a: LatentAttention, name: str) -> tuple[Op, ...]:
    """One latent and one rotary key a token, for all heads: all that is cached."""
    norm = norm_op(a.norm, f"{name}.kv_a_norm", "BTJ", "J")
    return (
        linear(f"{name}.kv_a_proj.latent", "BTD", "DJ", "BTJ", a.bias, "chip"),
        Op(norm.name, (Tensor("chip", "BTJ"), *norm.inputs[1:]), cache("BTJ")),
        linear(f"{name}.kv_a_proj.rope", "BTD", "DQ", "BTQ", a.bias, "cache"),
    )


def _absorbed(a: LatentAttention, name: str) -> tuple[Op, ...]:
    scores, latents = Tensor("chip", "BNTS"), cache("BSJ")
    return (
        linear(f"{name}.k_b_proj", "BTNP", "JNP", "BTNJ", False),
        Op(f"{name}.scores.latent", (activation("BTNJ"), latents), scores, mask=a.mask),
        Op(f"{name}.scores.rope", (activation("BTNQ"), cache("BSQ")), scores, mask=a.mask),
        Op(f"{name}.context", (scores, Tensor("chip", "BSJ")), activation("BTNJ"), mask=a.mask),
        linear(f"{name}.v_b_proj", "BTNJ", "JNU", "BTNU", False),
    )


def _expanded(a: LatentAttention, name: str) -> tuple[Op, ...]:
    scores = Tensor("chip", "BNTS")
    return (
        Op(f"{name}.k_b_proj", (cache("BSJ"), weight("JNP")), activation("BSNP")),
        Op(f"{name}.v_b_proj", (Tensor("chip", "BSJ"), weight("JNU")), activation("BSNU")),
        Op(f"{name}.scores.nope", (activation("BTNP"), activation("BSNP")), scores, mask=a.mask),
        Op(f"{name}.scores.rope", (activation("BTNQ"), cache("BSQ")), scores, mask=a.mask),
        Op(f"{name}.context", (scores, activation("BSNU")), activation("BTNU"), mask=a.mask),
    )


def _index_ops(a: LatentAttention, name: str) -> tuple[Op, ...]:
    """Every query is scored against every key before it, whatever is chosen then."""
    if not a.indexer or a.indexer.shared:
        return ()
    name, every, scores = f"{name}.indexer", Mask(True, None), Tensor("chip", "BITS")
    norm = norm_op(INDEX_NORM, f"{name}.k_norm", "BTY", "Y")
    return (
        linear(f"{name}.q_b_proj", "BTC", "CIY", "BTIY", False),
        linear(f"{name}.k_proj", "BTD", "DY", "BTY", False, "chip"),
        Op(norm.name, (Tensor("chip", "BTY"), *norm.inputs[1:]), cache("BTY")),
        linear(f"{name}.weights_proj", "BTD", "DI", "BTI", False),
        Op(f"{name}.scores", (activation("BTIY"), cache("BSY")), scores, mask=every),
        Op(f"{name}.weighted", (activation("BTI"), scores), Tensor("chip", "BTS"), mask=every),
    )
