"""model_type qwen2_moe: biases of queries, keys and values; experts beside a shared one behind a gate.

Source: Yang et al. 2024, arXiv:2407.10671, section 2.2.2; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, dense, mixed, rms_norm, routed, stepped, switched_windows, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import decoder, model, windowed
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",), "attention_bias": ("qkv_bias",)}
IGNORED = ROUTING
RELEASE = {
    "qwen2_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 32768, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_local_experts": 60,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    last = k.count("max_window_layers", default=28)
    windows = switched_windows(k, 4096, lambda layer: layer % 2 == 0 and layer < last)
    experts = routed(k, shared=k.int("shared_expert_intermediate_size"), shared_gate=True, **weighed(k, norm=False))
    mixer = windowed(k, windows, rotary=rotary(k, 1e4), kv_heads=16, bias=True, o_bias=False)
    return model(k, decoder(k, mixer, mixed(stepped(k), experts, dense(k)), rms_norm(k, 1e-6)), tie=False)
