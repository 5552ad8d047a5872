"""Bytes of a build's weights, derived from the config alone: what the size of its data file is held against."""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import LatentAttention, ModelConfig
from archcalc.cost import bound, buffers, parameters
from archcalc.ops import size as elements
from archcalc.quantization import Quantization, Scheme
from archcalc.quantization.checkpoint import checkpoint_bytes
from export.precision import ExportPrecision

ABSORBED = ("k_b_proj", "v_b_proj")  # of latent attention: no product's second factor, so they stay as they are
POOLER = ("pooler",)  # one product a text, of a vector: it stays as it is, too
HEAD = ("lm_head", "transform.dense", "head_projection")  # matrices that stand behind the blocks


def _buffer_bytes(config: ModelConfig, size: int) -> int:
    """Bytes of buffers: a router's correction bias in fp32, all else with `size` bytes a number."""
    found = (
        line.count * elements(axes, line.dims) * (4 if "E" in axes else size)
        for part in bound(config)
        for line in part.lines
        for role, axes in line.op.inputs
        if role == "buffer"
    )
    return sum(found)


def weight_bytes(config: ModelConfig, precision: ExportPrecision) -> int:
    """Bytes of all weights as they are stored, and of the buffers beside them."""
    size, scheme = precision.numpy.itemsize, precision.quantization
    beside = _buffer_bytes(config, size)
    if scheme is None:
        return size * parameters(config) + beside
    group = 0 if scheme.dynamic else scheme.group_size
    blocks, head = (Scheme(bits, (1, group), 8 * size) for bits in (scheme.bits, scheme.head_bits))
    owned = {line.name for line in bound(config)[1].lines if line.params}
    rules = tuple((name, head) for name in HEAD if name in owned)
    latent = any(isinstance(block.self_attn, LatentAttention) for s in config.stacks.values() for block in s.layers)
    excluded = (ABSORBED if latent else ()) + (POOLER if config.head.kind == "pooler" else ())
    stored = Quantization("export", blocks, excluded, rules, plain_bytes=size)
    total = checkpoint_bytes(replace(config, quantization=stored)).total.bytes - 4 * buffers(config) + beside
    if config.head.has_logits and config.tie_word_embeddings:  # the head's integers lie beside the embedding
        total += sum(head.stored(config.vocab_size, config.hidden_size)[:2])
    return total
