"""model_type cohere2_moe: the cohere2 block, attention and feed-forward side by side behind one norm, with experts.

Source: Cohere 2026, the published config and classes of Command A+; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.cohere import scaled_head
from archcalc.families.experts import ROUTING, dense, mixed, mlp_layer_types, own_head, routed, weighed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import FULL, SLIDING, every, layer_count
from archcalc.keys import Keys

ALIASES = {
    "num_local_experts": ("num_experts",),
    "sliding_window_pattern": ("layer_switch",),
    "partial_rotary_factor": ("rotary_pct",),
}
# Whether shared and routed outputs are averaged or summed.
IGNORED = ROUTING | {
    "shared_expert_combination_strategy", "cache_implementation", "order_of_interleaved_layers",
    "position_embedding_type",
}  # fmt: skip
RELEASE = {
    "cohere2_moe": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_experts_per_tok": 2, "num_local_experts": 8,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("embedding_sharing", "gated_activation", "parallel_block"):
        k.must_be(f"use_{name}", True)
    k.must_be("use_qk_norm", False)
    rms, eps = k.float("rms_norm_eps", default=None), k.float("layer_norm_eps", default=1e-5)
    norm = Norm("layernorm", eps, bias=False) if rms is None else Norm("rmsnorm", rms)
    depth, first = layer_count(k), k.count("first_k_dense_replace", default=0)
    early = k.int("prefix_dense_sliding_window_pattern", default=1)
    types = every(early, FULL, SLIDING, first) + every(
        k.int("sliding_window_pattern", default=4), FULL, SLIDING, max(0, depth - first)
    )
    width = k.int("intermediate_size")
    scoring = k.choice("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"}, default="softmax")
    routing = weighed(k, scoring) if scoring == "sigmoid" else {}
    shared = width * k.count("num_shared_experts", default=0)
    experts = routed(k, "intermediate_size", shared=shared, **routing)
    plain = dense(k, name="prefix_dense_intermediate_size", size=width)
    # Layers that see everything have no positions, but those of a dense beginning without windows do.
    full = {} if first and early == 1 else {"full": {"rotary": None}}
    sparse = mlp_layer_types(k, lambda: tuple(layer >= first for layer in range(depth)))
    return rotary_decoder(
        k, mixed(sparse, experts, plain), positions=8192, norm=norm, tie=True, window=4096, types=types,
        parallel="shared", head=own_head(k, 128), interleaved=True, fields={"head": scaled_head(k)}, **full,
    )  # fmt: skip
