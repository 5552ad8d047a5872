"""model_type mpt: pre-LayerNorm, ALiBi, no biases (of norms neither), tied head, feed-forward of 4 x d_model.

The variants of the first code (one key/value head, normed queries and keys, learned positions, biases, another
`expansion_ratio`) are not in Hugging Face's class, and refused. Source: MosaicML 2023, llm-foundry.
"""

from __future__ import annotations

from archcalc import keys
from archcalc.config import Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "max_position_embeddings": ("max_seq_len",),
}
IGNORED = frozenset({
    "init_config", "init_device", "verbose", "tokenizer_name", "embedding_fraction", "emb_pdrop", "learned_pos_emb",
    "logit_scale", "use_pad_tok_in_ffn", "attn_impl",
})  # fmt: skip
NORMS = dict.fromkeys(("layernorm", "low_precision_layernorm"), "layernorm")
ONLY = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "alibi": True}
HARMLESS = frozenset({
    "attn_impl", "attn_pdrop", "softmax_scale", "clip_qkv", "attn_uses_sequence_id", "alibi_bias_max", "model_type",
    "qk_gn", "sliding_window_size",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("no_bias", True, "the family's class has no biases")
    k.must_be("expansion_ratio", 4, "the family's class has 4")
    if inner := k.nested("attn_config"):
        for name, only in ONLY.items():
            inner.must_be(name, only, "the family's class knows nothing else")
        inner.used |= HARMLESS | keys.HARMLESS | {"is_encoder_decoder"}
        inner.finish()
    kind = k.choice("norm_type", NORMS, default="layernorm")
    norm = Norm(kind, k.float("layer_norm_epsilon", default=1e-5), bias=False)
    mlp = feed_forward(k, act="gelu", gated=False, size=4 * k.int("hidden_size"))
    mixer = windowed(k, (None,) * layer_count(k), alibi=True)
    return model(k, decoder(k, mixer, same(mlp), norm), tie=True, positions=2048)
