"""model_type opt: gpt2's block with ReLU; the position table has two rows more than positions.

The 350M has its norms after the sublayers (`do_layer_norm_before`) and narrower embeddings (`word_embed_proj_dim`).
Source: Zhang et al. 2022, arXiv:2205.01068.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Embedding, Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, layer_windows, model, same, windowed
from archcalc.keys import Keys

ALIASES = {"intermediate_size": ("ffn_dim",), "hidden_act": ("activation_function",)}
IGNORED = frozenset({"layerdrop"})
RELEASE = {
    "opt": {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", 1e-5, weight=k.bool("layer_norm_elementwise_affine", default=True))
    biased, hidden = k.bool("enable_bias", default=True), k.int("hidden_size")
    mlp = feed_forward(k, act="relu", gated=False, bias=biased)
    mixer = windowed(k, layer_windows(k, layer_count(k), None), bias=biased)
    placement = "pre" if k.bool("do_layer_norm_before", default=True) else "post"
    stack = decoder(k, mixer, same(mlp), norm, placement)
    if k.bool("_remove_final_layer_norm", default=False):
        stack = replace(stack, final_norm=None)
    width = k.int("word_embed_proj_dim", default=hidden)
    extra = Embedding(width if width != hidden else None, position_offset=2)
    return model(k, stack, tie=True, positions=2048, position_embedding="learned", embedding=extra)
