"""model_type olmo2: the llama block as x + norm(f(x)), with norms over all queries and over all keys.

Source: OLMo team 2025, arXiv:2501.00656.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return post_normed_decoder(k, theta=1e4)


def post_normed_decoder(k: Keys, **defaults) -> dict:
    """What both share; arguments as in `rotary_decoder`."""
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    parts = {"qk_norm": norm, "qk_norm_over": "all", "norm": norm, "placement": "inner"} | defaults
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048, **parts)
