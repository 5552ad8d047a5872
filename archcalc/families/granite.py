"""model_type granite: the llama block with four multipliers, of which no count depends.

Source: IBM, Granite 3.0, 2024.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = frozenset({"embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048)
