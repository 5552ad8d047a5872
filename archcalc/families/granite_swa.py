"""model_type granite_swa: granite with sinks in the attention, and windows in three layers of four.

Source: the Hugging Face class.
"""

from __future__ import annotations

from archcalc.families.cwm import first_of_four
from archcalc.families.granite import IGNORED as MULTIPLIERS
from archcalc.families.granite import factors
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, layer_count, same
from archcalc.keys import Keys

IGNORED = MULTIPLIERS | {"layer_rope_theta"}  # the base of each layer's rotary positions


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp, types = same(feed_forward(k, act="silu", gated=True)), first_of_four(layer_count(k))
    parts = {"kv_heads": 4, "window": 128, "types": types, "sinks": True} | factors(k)
    return rotary_decoder(k, mlp, positions=8192, eps=1e-5, tie=True, **parts)
