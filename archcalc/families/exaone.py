"""model_type exaone (EXAONE 3): the llama block under other names. Source: LG AI Research 2024, arXiv:2412.04862."""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {
    "num_hidden_layers": ("num_layers",),
    "rms_norm_eps": ("layer_norm_epsilon",),
    "hidden_act": ("activation_function",),
}
IGNORED = frozenset({"embed_dropout"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    return rotary_decoder(k, mlp, positions=4096, theta=5e5, eps=1e-5, kv_heads=8)
