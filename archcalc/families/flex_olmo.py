"""model_type flex_olmo: the olmo2 block, norms of what each sublayer adds, with experts in every layer.

Source: Shi et al. 2025, arXiv:2507.07024; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, rms_norm, routed, weighed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING
RELEASE = {
    "flex_olmo": {
        "vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_experts_per_tok": 5, "num_local_experts": 7,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, experts = rms_norm(k, 1e-6), same(routed(k, "intermediate_size", **weighed(k, norm=False)))
    parts = {"qk_norm": norm, "qk_norm_over": "all", "placement": "inner"}
    return rotary_decoder(k, experts, positions=4096, theta=5e5, norm=norm, **parts)
