"""model_type gpt_oss: sinks in every head, windows in every other layer, experts and router with biases.

Source: OpenAI 2025, arXiv:2508.10925; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.families.experts import ROUTING, own_head, rms_norm, routed
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, SLIDING, decoder, every, layer_count, layer_windows, model, same, windowed
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"initial_context_length", "swiglu_alpha"}  # always 1.702
RELEASE = {
    "gpt_oss": {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "max_position_embeddings": 131072, "num_experts_per_tok": 4,
        "num_local_experts": 128,
    }
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    depth = layer_count(k)
    windows = layer_windows(k, depth, 128, every(2, FULL, SLIDING, depth))
    turned = rotary(k, 1.5e5, absent=YARN)
    mixer = windowed(k, windows, rotary=turned, kv_heads=8, head=own_head(k, 64), bias=True, sinks=True)
    older = k.int("experts_per_token", default=None)  # speaks where the other key is absent
    chosen = k.int("num_experts_per_tok", default=older) if older else k.int("num_experts_per_tok")
    experts = routed(k, "intermediate_size", counts=(k.int("num_local_experts"), chosen), router_bias=True)
    limit = k.float("swiglu_limit", default=7.0)
    experts = replace(experts, expert=replace(experts.expert, bias=True, swiglu_limit=limit))
    return model(k, decoder(k, mixer, same(experts), rms_norm(k, 1e-5)), tie=False)
