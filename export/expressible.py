"""Which models the exporter turns into a graph. Parts that it cannot express yet are refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from archcalc.config import Attention, Block, FeedForward, ModelConfig
from export.files import ExportError

# Fields of Attention that the graph has nothing for, and what they are called.
NOT_YET = {
    "sinks": "attention sinks",
    "alibi": "a bias by distance (alibi)",
    "relative_buckets": "a bias by distance (relative_buckets)",
    "attention_chunk_size": "chunked attention",
    "v_head_dim": "values of another width than keys (v_head_dim)",
}


def _inexpressible(config: ModelConfig) -> Iterator[str]:
    """What of a model has no graph yet, in words."""
    if config.decoder is None:
        yield "a model without a decoder"
        return
    if config.encoder:
        yield "an encoder-decoder"
    for block in dict.fromkeys(config.decoder.layers):
        yield from _of_block(block)
    if config.head.kind != "lm" or config.head.bias or config.head.buffer_bias:
        yield "a head with more than a matrix"


def _of_block(block: Block) -> Iterator[str]:
    if block.self_attn is None or block.mlp is None:
        yield "a block of one sublayer"
    if block.self_attn is not None:
        if not isinstance(block.self_attn, Attention):
            yield type(block.self_attn).__name__
        else:
            given = {field for field in NOT_YET if getattr(block.self_attn, field) not in (None, False)}
            yield from (words for field, words in NOT_YET.items() if field in given)
    if block.residual.value_residual or block.residual.skip:
        yield "a residual from another layer"
    if block.mlp is not None and not isinstance(block.mlp, FeedForward):
        yield "a mixture of experts (mlp.experts)"


def check_exportable(config: ModelConfig) -> None:
    """Raise ExportError, naming the part, for what has no graph yet."""
    if part := next(_inexpressible(config), None):
        raise ExportError(f"{config.name}: {part} cannot be exported yet; give a dense decoder-only model without it")
