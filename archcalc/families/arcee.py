"""model_type arcee (AFM): the llama block with a plain feed-forward of squared ReLU.

Source: Arcee AI 2025, AFM-4.5B.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, same(feed_forward(k, act="relu2", gated=False)), positions=4096, eps=1e-5)
