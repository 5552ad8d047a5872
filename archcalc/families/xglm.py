"""model_type xglm: pre-LayerNorm, computed sinusoids, biases, scaled and tied embeddings.

Source: Lin et al. 2021, arXiv:2112.10668.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("attention_heads",),
    "intermediate_size": ("ffn_dim",),
    "hidden_act": ("activation_function",),
}
IGNORED = frozenset({"layerdrop"})
RELEASE = {
    "xglm": {
        "vocab_size": 256008, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mixer = windowed(k, (None,) * layer_count(k), bias=True)
    stack = decoder(k, mixer, same(feed_forward(k, act="gelu", gated=False, bias=True)), Norm("layernorm", 1e-5))
    scaled = k.bool("scale_embedding", default=True)
    return model(k, stack, tie=True, positions=2048, position_embedding="sinusoidal", scale_embedding=scaled)
