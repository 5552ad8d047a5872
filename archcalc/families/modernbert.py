"""model_type modernbert: pre-LayerNorm encoder, rotary, GeGLU; of three layers two see `local_attention` tokens.

The norm of the embeddings is the first block's: it runs once, in front of everything.
Source: Warner et al. 2024, arXiv:2412.13663; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Head, Norm
from archcalc.families import encoder
from archcalc.families.rope import rotaries
from archcalc.families.shared import FULL, SLIDING, decoder, feed_forward, layer_count, layer_windows, same, windowed
from archcalc.keys import Keys

ALIASES = {"hidden_act": ("hidden_activation",), "rope_theta": ("global_rope_theta",), "norm_eps": ("layer_norm_eps",)}
IGNORED = encoder.IGNORED | {
    "classifier_pooling", "classifier_activation", "deterministic_flash_attn", "initializer_cutoff_factor",
    "mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
    "sparse_pred_ignore_index",
}  # fmt: skip
RELEASE = {
    "modernbert": {
        "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
        "intermediate_size": 1152, "max_position_embeddings": 8192,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("norm_eps", default=1e-5), bias=k.bool("norm_bias", default=False))
    mlp = feed_forward(k, act="gelu", gated=True)
    bases = {SLIDING: ("local_rope_theta", 1e4), FULL: ("rope_theta", 1.6e5)}
    turned = rotaries(k, bases, (SLIDING, FULL))
    mixer = windowed(k, _windows(k), {"rotary": turned[FULL]}, rotary=turned[SLIDING], causal=False)
    between = Head(dense_bias=k.bool("classifier_bias", default=False), norm=norm)
    lm = Head("mlm", k.bool("decoder_bias", default=True), norm, dense_bias=between.dense_bias)
    head = encoder.task_head(k, norm, pooler=False, lm=lm, between=between)
    return encoder.encoder_model(k, decoder(k, mixer, same(mlp), norm), head, one_bias=True)


def _windows(k: Keys) -> tuple:
    """How far a token of each layer sees to either side, None for everything."""
    depth, period = layer_count(k), k.int("global_attn_every_n_layers", default=3)
    reach = k.int("local_attention", default=128) // 2
    return layer_windows(k, depth, reach, tuple(SLIDING if layer % period else FULL for layer in range(depth)))
