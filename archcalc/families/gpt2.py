"""model_type gpt2: pre-LayerNorm, a learned position table, multi-head attention, GELU, biases, tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, layer_windows, model, same, windowed
from archcalc.keys import Keys

ALIASES = {
    "vocab_size": ("n_vocab",),
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions",),
    "intermediate_size": ("n_inner",),
    "hidden_act": ("activation_function",),
}
# n_ctx once sized the stored causal mask; n_special and predict_special_tokens belong to the first release.
IGNORED = frozenset({"n_ctx", "n_special", "predict_special_tokens"})
RELEASE = {"gpt2": {"vocab_size": 50257, "max_position_embeddings": 1024}}  # one vocabulary for all sizes


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5))
    mlp = feed_forward(k, act="gelu_new", gated=False, bias=True, size=4 * k.int("hidden_size"))
    mixer = windowed(k, layer_windows(k, layer_count(k), None), bias=True)
    return model(k, decoder(k, mixer, same(mlp), norm), tie=True, position_embedding="learned")
