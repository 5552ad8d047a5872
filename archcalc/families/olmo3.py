"""model_type olmo3: olmo2 with three windowed layers of four. Source: OLMo team 2025, arXiv:2512.13961."""

from __future__ import annotations

from archcalc.families.olmo2 import post_normed_decoder
from archcalc.families.rope import rotaries
from archcalc.families.shared import FULL, SLIDING, every, layer_count
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    turned = rotaries(k, dict.fromkeys((SLIDING, FULL), ("rope_theta", 5e5)), (FULL,), positions=2048)
    parts = {"rotary": turned[SLIDING], "full": {"rotary": turned[FULL]}}
    return post_normed_decoder(k, window=4096, types=every(4, FULL, SLIDING, layer_count(k)), **parts)
