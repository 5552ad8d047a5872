"""Attention over the last tokens one by one and over all earlier ones in compressed entries, one for each chunk.

Keys are values: one head of H for all query heads, its rotary turn undone in the output. The output projection is one
of low rank for each group of heads, then one of all of them.
Source: DeepSeek-AI 2026, DeepSeek-V4 (section 2.3) and its released configs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import divides, positive
from archcalc.ops import Mask, Op, Tensor, activation, cache, linear, weight
from archcalc.parts.latent import Indexer
from archcalc.parts.norm import Norm, norm_op
from archcalc.parts.positions import Rotary


@dataclass(frozen=True)
class CompressedAttention:
    """A query sees the last `sliding_window` tokens, and one entry for each chunk of `compress_rate` past tokens.

    Args:
        compress_rate: None in a layer that has the window only.
        indexer: of all entries only the best `index_topk` are read (compressed sparse attention), and an entry sums two
            series: one of its own chunk and one of the chunk before. Without it all entries are read (heavily
            compressed attention), each a sum over its own chunk.
        norm: of the queries' latent, the keys and the entries. The queries also get a norm without weights.
    """

    num_attention_heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    norm: Norm
    compress_rate: int | None = None
    indexer: Indexer | None = None
    rotary: Rotary | None = None

    module = "self_attn"
    causal = True

    def __post_init__(self):
        positive(
            num_attention_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            q_lora_rank=self.q_lora_rank,
            o_groups=self.o_groups,
            o_lora_rank=self.o_lora_rank,
            sliding_window=self.sliding_window,
        )
        divides(o_groups=self.o_groups, num_attention_heads=self.num_attention_heads)
        if self.compress_rate is not None:
            positive(compress_rate=self.compress_rate)

    @property
    def dims(self) -> dict[str, int]:
        heads, groups = self.num_attention_heads, self.o_groups
        found = {"N": heads, "H": self.head_dim, "C": self.q_lora_rank, "W": self.sliding_window}
        found |= {"g": groups, "r": heads // groups, "ω": self.o_lora_rank}
        found |= {"c": self.compress_rate} if self.compress_rate else {}
        return found | ({"q": 2} | self.indexer.dims if self.indexer else {})

    def ops(self, name: str) -> tuple[Op, ...]:
        """Self-attention over T new tokens and S keys."""
        return _compressed_ops(self, name)


@lru_cache(maxsize=64)
def _compressed_ops(a: CompressedAttention, name: str) -> tuple[Op, ...]:
    window = Mask(True, "W", "window")
    norm = norm_op(a.norm, f"{name}.kv_norm", "BTH", "H")
    return (
        linear(f"{name}.q_a_proj", "BTD", "DC", "BTC", False),
        norm_op(a.norm, f"{name}.q_a_norm", "BTC", "C"),
        linear(f"{name}.q_b_proj", "BTC", "CNH", "BTNH", False),
        Op(f"{name}.q_b_norm", (activation("BTNH"),), activation("BTNH")),
        linear(f"{name}.kv_proj", "BTD", "DH", "BTH", False, "chip"),
        Op(norm.name, (Tensor("chip", "BTH"), *norm.inputs[1:]), cache("BTH")),
        Op(f"{name}.sinks", (weight("N"),), Tensor("chip", "N")),
        *_attend(f"{name}.window", window),
        *(_entry_ops(a, name) if a.compress_rate else ()),
        linear(f"{name}.o_a_proj", "BTgrH", "grHω", "BTgω", False),
        linear(f"{name}.o_b_proj", "BTgω", "gωD", "BTD", False),
    )


def _attend(name: str, mask: Mask) -> tuple[Op, Op]:
    """Scores and context over one kind of keys; what both kinds sum to stays on the chip."""
    scores = Tensor("chip", "BNTS")
    return (
        Op(f"{name}.scores", (activation("BTNH"), cache("BSH")), scores, mask=mask),
        Op(f"{name}.context", (scores, Tensor("chip", "BSH")), activation("BTNH"), mask=mask),
    )


def _entry_ops(a: CompressedAttention, name: str) -> tuple[Op, ...]:
    entries, series = Mask(True, None, stride="c"), "q" if a.indexer else ""
    made = _compressor(a.norm, f"{name}.compressor", f"{series}H", "H")
    if not a.indexer:
        return *made, *_attend(f"{name}.compressor", entries)
    index, scores = f"{name}.compressor.indexer", Tensor("chip", "BITS")
    return (
        *made,
        *_compressor(a.norm, index, "qY", "Y"),
        linear(f"{index}.q_b_proj", "BTC", "CIY", "BTIY", False),
        linear(f"{index}.weights_proj", "BTD", "DI", "BTI", False),
        Op(f"{index}.scores", (activation("BTIY"), cache("BSY")), scores, mask=entries),
        Op(f"{index}.weighted", (activation("BTI"), scores), Tensor("chip", "BTS"), mask=entries),
        *_attend(f"{name}.compressor", Mask(True, "Z", "topk", "c")),
    )


def _compressor(norm: Norm, name: str, made: str, entry: str) -> tuple[Op, ...]:
    """Entries from chunks: values weighted by a softmax over the chunk, of each element of an entry by itself.

    What of a chunk is not whole yet is kept as a state of values and weights; with two series the chunk before, too.
    All places of an entry count, also those of the first one that nothing comes before.
    """
    axes = (activation(f"BT{made}"), activation(f"BT{made}"))
    state = Tensor("state", f"B{'q' if made != entry else ''}c{made}")  # two series, of this chunk and the one before
    whole = Mask(True, None, "made", "c")
    return (
        linear(f"{name}.kv_proj", "BTD", f"D{made}", f"BT{made}", False),
        linear(f"{name}.gate_proj", "BTD", f"D{made}", f"BT{made}", False),
        Op(f"{name}.kv_norm", (weight(entry),) * norm.vectors, Tensor("chip", entry)),
        Op(f"{name}.pool", (*axes, weight(f"c{made}"), state, state), cache(f"BS{entry}"), mask=whole),
    )
