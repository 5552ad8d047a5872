"""model_type jais2: LayerNorm, squared ReLU, biases. Source: Inception and MBZUAI 2025, Jais 2."""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="relu2", gated=False, bias=True))
    return rotary_decoder(k, mlp, positions=8192, norm=norm, bias=True)
