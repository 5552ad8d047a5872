"""model_type olmoe: norms over all heads of queries and of keys at once, experts in every layer.

Source: Muennighoff et al. 2024, arXiv:2409.02060; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, rms_norm, routed, weighed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"clip_qkv"}
RELEASE = {
    "olmoe": {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_experts_per_tok": 8, "num_local_experts": 64,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, experts = rms_norm(k, 1e-5), same(routed(k, "intermediate_size", **weighed(k, norm=False)))
    return rotary_decoder(k, experts, positions=4096, norm=norm, qk_norm=norm, qk_norm_over="all")
