"""model_type nemotron (Nemotron-4, Minitron): LayerNorm, squared ReLU, half of each head turned.

Source: Parmar et al. 2024, arXiv:2402.16819; Muralidharan et al. 2024, arXiv:2407.14679.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {"head_dim": ("kv_channels",)}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("norm_eps", default=1e-5), offset=1.0)
    return rotary_decoder(k, same(feed_forward(k, act="relu2", gated=False)), positions=4096, share=0.5, norm=norm)
