"""model_type ctrl: pre-LayerNorm, computed sinusoids, ReLU, biases, scaled embeddings, tied head with a bias.

Source: Keskar et al. 2019, arXiv:1909.05858.
"""

from __future__ import annotations

from archcalc.config import Embedding, Head, Norm
from archcalc.families.gpt2 import ALIASES as GPT2
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = GPT2 | {"intermediate_size": ("dff",)}
IGNORED = frozenset({"n_ctx"})
RELEASE = {
    "ctrl": {
        "vocab_size": 246534, "hidden_size": 1280, "num_hidden_layers": 48, "num_attention_heads": 16,
        "intermediate_size": 8192,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mixer = windowed(k, (None,) * layer_count(k), bias=True)
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-6))
    stack = decoder(k, mixer, same(feed_forward(k, act="relu", gated=False, bias=True)), norm)
    fields = {"position_embedding": "sinusoidal", "scale_embedding": True, "head": Head(bias=True)}
    fields["embedding"] = Embedding(sinusoid_halves=True)
    return model(k, stack, tie=True, positions=256, **fields)
