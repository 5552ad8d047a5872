"""model_type olmo3: olmo2 with three windowed layers of four. Source: OLMo team 2025, arXiv:2512.13961."""

from __future__ import annotations

from archcalc.families.olmo2 import post_normed_decoder
from archcalc.families.shared import FULL, SLIDING, every, layer_count
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return post_normed_decoder(k, theta=5e5, window=4096, types=every(4, FULL, SLIDING, layer_count(k)))
