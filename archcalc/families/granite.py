"""model_type granite: the llama block with four multipliers, of which no count depends.

Source: IBM, Granite 3.0, 2024.
"""

from __future__ import annotations

from archcalc.config import Head
from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = frozenset({"embedding_multiplier", "residual_multiplier"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048, **factors(k))


def factors(k: Keys) -> dict:
    """What scores are multiplied by, and logits divided by, as arguments of `rotary_decoder`."""
    divisor = k.float("logits_scaling", default=1.0)
    if divisor <= 0:
        raise ConfigError(f"logits_scaling={divisor!r}: must be positive; 1.0 is none")
    return {"scale": k.float("attention_multiplier", default=1.0), "fields": {"head": Head(scale=1 / divisor)}}
