"""model_type glm4 (GLM-4-0414, GLM-Z1): glm with norms on both sides of a sublayer.

Source: GLM team 2025, GLM-4-0414.
"""

from __future__ import annotations

from archcalc.families.glm import SIZES, half_turned_decoder
from archcalc.keys import Keys

RELEASE = {"glm4": SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return half_turned_decoder(k, placement="sandwich")
