"""model_type marian: the encoder-decoder of 2017, with post-LayerNorm, biases and three-way tied embeddings.

A canonical key (`num_hidden_layers`) speaks for each stack that has no key of its own (`decoder_layers`).
`sliding_window` narrows the decoder's self-attention; encoder and cross-attention see every source token.
Source: Vaswani et al. 2017, arXiv:1706.03762; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding, Head, Norm
from archcalc.errors import ConfigError
from archcalc.families import pair
from archcalc.keys import Keys

ALIASES = pair.ALIASES | {"norm_placement": ("normalize_before", "add_final_layer_norm")}
PER_STACK = pair.PER_STACK
# extra_pos_embeddings: an offset of the padding row in tables that are not stored.
IGNORED = pair.IGNORED


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    static = k.bool("static_position_embeddings", default=True)
    if not static:
        k.must_be("extra_pos_embeddings", 0, "learned tables with extra rows are not understood yet")
    norm = Norm("layernorm", 1e-5)  # fixed: the family has no key for its epsilon
    placement, has_final_norm = _norms(k)
    stacks = pair.two_stacks(k, norm, placement, norm if has_final_norm else None)
    k.must_be("decoder_vocab_size", k.int("vocab_size"), "the stacks have one vocabulary; two are not understood yet")
    return pair.pair_model(
        k,
        stacks,
        max_position_embeddings=k.int("max_position_embeddings"),
        position_embedding="sinusoidal" if static else "learned",
        embedding=Embedding(sinusoid_halves=static),
        head=Head(buffer_bias=True),
        share_embeddings=k.bool("share_encoder_decoder_embeddings", default=True),
    )


def _norms(k: Keys) -> tuple[str, bool]:
    """(norm_placement, whether each stack ends in a norm)."""
    k = k.view(k.raw, {})  # norm_placement and the keys that it replaces have different values
    before = k.bool("normalize_before", default=None)
    placement = k.choice("norm_placement", {"pre": "pre", "post": "post"}, default="pre" if before else "post")
    if before is not None and before != (placement == "pre"):
        raise ConfigError(f"norm_placement={placement!r} with normalize_before={before}: they disagree; give only one")
    return placement, k.bool("add_final_layer_norm", default=placement == "pre")
