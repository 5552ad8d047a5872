"""model_type afmoe: a gate for every element of the attention's output, norms on both sides, full layers at intervals.

Source: Arcee AI 2025, the published configs and classes of Trinity; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, after_first, dense, mixed, own_head, rms_norm, routed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import FULL, SLIDING, every, layer_count
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"load_balance_coeff", "num_expert_groups", "use_grouped_mm"}
RELEASE = {
    "afmoe": {
        "vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 16, "moe_intermediate_size": 1408, "num_experts_per_tok": 6, "num_local_experts": 64,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys. The bias that balances the experts is a parameter here."""
    norm, period = rms_norm(k, 1e-5), k.int("global_attn_every_n_layers", default=4)
    shared = k.count("num_shared_experts", default=2) * k.int("moe_intermediate_size")
    scale = k.float("route_scale", default=1.0)
    experts = routed(k, shared=shared, router_bias=True, scoring="sigmoid", routed_scaling_factor=scale)
    mlp = mixed(after_first(k, "num_dense_layers", 1), experts, dense(k))
    parts = {
        "qk_norm": norm,
        "output_gate": "element",
        "gate_bias": False,
        "head": own_head(k, 128),
        "full": {"rotary": None},
    }
    types = every(period, FULL, SLIDING, layer_count(k))
    fields = {"scale_embedding": k.bool("mup_enabled", default=False)}
    return rotary_decoder(
        k, mlp, fields=fields, positions=16384, norm=norm, placement="sandwich", window=1024, types=types, **parts
    )  # fmt: skip
