"""model_type mixtral: the llama block whose feed-forward is a mixture of experts.

Source: Jiang et al. 2024, arXiv:2401.04088; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, routed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, same(routed(k, "intermediate_size")), positions=131072, theta=1e6, eps=1e-5, kv_heads=8)
