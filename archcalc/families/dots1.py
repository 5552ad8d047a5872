"""model_type dots1: the qwen3 block; experts after the first layers, shared ones beside them.

Source: rednote-hilab 2025, arXiv:2506.05767; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, after_first, dense, mixed, rms_norm, routed, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, SLIDING, decoder, layer_count, layer_windows, model, predictors, windowed
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("n_routed_experts", "num_experts")}
IGNORED = ROUTING
RELEASE = {
    "dots1": {
        "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "num_hidden_layers": 62,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "moe_intermediate_size": 1408,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, depth = rms_norm(k, 1e-6), layer_count(k)
    k.must_be("moe_layer_freq", 1)
    k.must_be("use_sliding_window", False)
    first = k.count("max_window_layers", default=62)
    windows = (None,) * depth
    if not k.given("sliding_window") or k.int("sliding_window", default=None):
        windows = layer_windows(k, depth, 4096, tuple(SLIDING if layer >= first else FULL for layer in range(depth)))
    mixer = windowed(k, windows, rotary=rotary(k, 1e4), kv_heads=32, qk_norm=norm)
    shared = k.count("n_shared_experts") * k.int("moe_intermediate_size")
    routing = weighed(k, "sigmoid", norm=False, scale=1.0, groups=(1, 1))
    mlp = mixed(after_first(k), routed(k, shared=shared, correction_bias=True, **routing), dense(k))
    return model(k, decoder(k, mixer, mlp, norm), tie=False, left_out=predictors(k))
