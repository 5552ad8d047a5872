"""Grouped-query attention that reads only chosen blocks of keys.

Source: MiniMax 2026, the released MiniMax-M3 configs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.dims import CAUSAL, Mask
from archcalc.errors import ConfigError
from archcalc.ops import Op, Tensor, activation, cache, linear
from archcalc.parts.attention import Attention
from archcalc.parts.norm import Norm, norm_op


@dataclass(frozen=True)
class BlockIndexer:
    """Scores every key with small heads; the best `index_topk_blocks` blocks of `index_block_size` keys are read.

    A query's own block is always among them. One key of `index_head_dim` a token is cached. `norm` is of its queries
    and keys.
    """

    index_n_heads: int
    index_head_dim: int
    index_block_size: int
    index_topk_blocks: int
    norm: Norm

    def __post_init__(self):
        positive(index_n_heads=self.index_n_heads, index_head_dim=self.index_head_dim)
        positive(index_block_size=self.index_block_size, index_topk_blocks=self.index_topk_blocks)

    @property
    def dims(self) -> dict[str, int]:
        heads = {"I": self.index_n_heads, "Y": self.index_head_dim}
        return heads | {"c": self.index_block_size, "Z": self.index_topk_blocks}


@dataclass(frozen=True)
class BlockSparseAttention(Attention):
    """Attention whose keys an indexer chooses by blocks."""

    indexer: BlockIndexer | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.indexer is None or self.sliding_window or self.attention_chunk_size or not self.causal:
            raise ConfigError("indexer: chooses of all keys before a query; give one, and neither window nor chunk")

    @property
    def mask(self) -> Mask:
        return Mask(True, "Z", "blocks", "c")

    @property
    def dims(self) -> dict[str, int]:
        return super().dims | self.indexer.dims

    def ops(self, name: str) -> tuple[Op, ...]:
        """Self-attention over T new tokens and S keys."""
        return (*_index_ops(self.indexer.norm, f"{name}.indexer"), *super().ops(name))


@lru_cache(maxsize=64)
def _index_ops(norm: Norm, name: str) -> tuple[Op, ...]:
    """Every query is scored against every key before it; the best score of a block is its score."""
    keys = norm_op(norm, f"{name}.k_norm", "BTY", "Y")
    return (
        linear(f"{name}.q_proj", "BTD", "DIY", "BTIY", False),
        norm_op(norm, f"{name}.q_norm", "BTIY", "Y"),
        linear(f"{name}.k_proj", "BTD", "DY", "BTY", False, "chip"),
        Op(keys.name, (Tensor("chip", "BTY"), *keys.inputs[1:]), cache("BTY")),
        Op(f"{name}.scores", (activation("BTIY"), cache("BSY")), Tensor("chip", "BITS"), mask=CAUSAL),
    )
