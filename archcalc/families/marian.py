"""model_type marian: the encoder-decoder of 2017, with post-LayerNorm, biases and three-way tied embeddings.

A canonical key (`num_hidden_layers`) speaks for each stack that has no key of its own (`decoder_layers`).
`sliding_window` narrows the decoder's self-attention; encoder and cross-attention see every source token.
Source: Vaswani et al. 2017, arXiv:1706.03762; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Attention, Block, Norm
from archcalc.errors import ConfigError
from archcalc.families.shared import attention, feed_forward, layer_count, layer_windows, stack, stack_keys
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("d_model",),
    "hidden_act": ("activation_function",),
    "norm_placement": ("normalize_before", "add_final_layer_norm"),
}
PER_STACK = {
    "num_hidden_layers": ("encoder_layers", "decoder_layers"),
    "num_attention_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "intermediate_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
}
IGNORED = frozenset({"extra_pos_embeddings"})  # an offset of the padding row in tables that are not stored


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("is_encoder_decoder", True, "this family has an encoder and a decoder")
    static = k.bool("static_position_embeddings", default=True)
    if not static:
        k.must_be("extra_pos_embeddings", 0, "learned tables with extra rows are not understood yet")
    encoder, decoder = stack_keys(k, PER_STACK, 0), stack_keys(k, PER_STACK, 1)
    norm = Norm("layernorm", 1e-5)  # fixed: the family has no key for its epsilon
    placement, has_final_norm = _norms(k)
    final_norm = norm if has_final_norm else None

    def block(k: Keys, window: int | None, cross: Attention | None) -> Block:
        itself = attention(k, bias=True, window=window, causal=cross is not None)
        return Block(itself, feed_forward(k, act="gelu", gated=False, bias=True), norm, placement, cross)

    cross = attention(decoder, bias=True, causal=False)
    windows = layer_windows(decoder, layer_count(decoder), None)
    size = k.int("vocab_size")
    k.must_be("decoder_vocab_size", size, "the stacks have one vocabulary; two are not understood yet")
    return {
        "vocab_size": size,
        "hidden_size": k.int("hidden_size"),
        "max_position_embeddings": k.int("max_position_embeddings"),
        "encoder": stack(layer_count(encoder), lambda layer: block(encoder, None, None), final_norm),
        "decoder": stack(len(windows), lambda layer: block(decoder, windows[layer], cross), final_norm),
        "position_embedding": "sinusoidal" if static else "learned",
        "tie_word_embeddings": k.bool("tie_word_embeddings", default=True),
        "share_embeddings": k.bool("share_encoder_decoder_embeddings", default=True),
        "scale_embedding": k.bool("scale_embedding", default=False),
    }


def _norms(k: Keys) -> tuple[str, bool]:
    """(norm_placement, whether each stack ends in a norm)."""
    k = k.view(k.raw, {})  # norm_placement and the keys that it replaces have different values
    before = k.bool("normalize_before", default=None)
    placement = k.choice("norm_placement", {"pre": "pre", "post": "post"}, default="pre" if before else "post")
    if before is not None and before != (placement == "pre"):
        raise ConfigError(f"norm_placement={placement!r} with normalize_before={before}: they disagree; give only one")
    return placement, k.bool("add_final_layer_norm", default=placement == "pre")
