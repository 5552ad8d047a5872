"""Bytes of a build's weights, derived from the config alone: what the size of its data file is held against."""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import LatentAttention, ModelConfig
from archcalc.cost import parameters
from archcalc.quantization import Quantization, Scheme
from archcalc.quantization.checkpoint import checkpoint_bytes
from export.precision import ExportPrecision

ABSORBED = ("k_b_proj", "v_b_proj")  # of latent attention: no product's second factor, so they stay as they are


def weight_bytes(config: ModelConfig, precision: ExportPrecision) -> int:
    """Bytes of all weights as they are stored; buffers are not counted."""
    size, scheme = precision.numpy.itemsize, precision.quantization
    if scheme is None:
        return size * parameters(config)
    group = 0 if scheme.dynamic else scheme.group_size
    blocks, head = (Scheme(bits, (1, group), 8 * size) for bits in (scheme.bits, scheme.head_bits))
    rules = (("lm_head", head),) if config.head.has_logits and not config.tie_word_embeddings else ()
    latent = any(isinstance(block.self_attn, LatentAttention) for s in config.stacks.values() for block in s.layers)
    stored = Quantization("export", blocks, ABSORBED if latent else (), rules, plain_bytes=size)
    total = checkpoint_bytes(replace(config, quantization=stored)).total.bytes
    if config.head.has_logits and config.tie_word_embeddings:  # the head's integers lie beside the embedding
        total += sum(head.stored(config.vocab_size, config.hidden_size)[:2])
    return total
