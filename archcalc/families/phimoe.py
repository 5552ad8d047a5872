"""model_type phimoe: the mixtral block with LayerNorm, and biases that its config turns on.

Source: Abdin et al. 2024, arXiv:2404.14219, section on Phi-3.5-MoE; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Head, Norm
from archcalc.families.experts import ROUTING, routed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"input_jitter_noise", "original_max_position_embeddings"}
RELEASE = {
    "phimoe": {
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_local_experts": 16,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("rms_norm_eps", default=1e-5))
    fields = {"head": Head(bias=k.bool("lm_head_bias", default=False))}
    experts = same(routed(k, "intermediate_size"))
    return rotary_decoder(k, experts, positions=131072, theta=1e6, norm=norm, kv_heads=8, fields=fields)
