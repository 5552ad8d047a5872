"""model_type bloom: pre-LayerNorm, ALiBi, biases, a norm of the embeddings, tied head, feed-forward of 4 x hidden_size.

Source: BigScience 2022, arXiv:2211.05100.
"""

from __future__ import annotations

from archcalc.config import Embedding, Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("n_embed",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("seq_length",),
}
# How sums were ordered in training, and fused kernels.
IGNORED = frozenset({
    "slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi",
    "skip_bias_add", "skip_bias_add_qkv", "unk_token_id",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("apply_residual_connection_post_layernorm", False)
    k.int("pretraining_tp", default=1)  # sums in that many slices; the products are the same
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5))
    width = 4 * k.int("hidden_size")
    k.must_be("intermediate_size", width, "this family has 4 x hidden_size")
    mlp = feed_forward(k, act="gelu_tanh", gated=False, bias=True, size=width)
    mixer = windowed(k, (None,) * layer_count(k), bias=True, alibi=True)
    stack = decoder(k, mixer, same(mlp), norm)
    return model(k, stack, tie=True, positions=2048, embedding=Embedding(norm=norm))
