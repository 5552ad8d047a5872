"""model_type hyperclovax: granite, with norms on both sides of a sublayer (`use_post_norm`).

Source: NAVER 2025, arXiv:2506.22403.
"""

from __future__ import annotations

from archcalc.config import Head
from archcalc.families.granite import IGNORED as MULTIPLIERS
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = MULTIPLIERS


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    placement = "sandwich" if k.bool("use_post_norm", default=True) else "pre"
    parts = {"scale": k.float("attention_multiplier", default=None), "placement": placement}
    fields = {"head": Head(scale=k.float("logits_scaling", default=1.0))}  # a factor here, not a divisor
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048, fields=fields, **parts)
