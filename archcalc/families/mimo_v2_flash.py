"""model_type mimo_v2_flash: sinks and more key/value heads in windowed layers, narrow values, experts after the first.

Source: Xiaomi 2026, arXiv:2601.02780; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Attention, Rotary
from archcalc.families.experts import ROUTING, dense, mixed, mlp_layer_types, rms_norm, routed, switches, weighed
from archcalc.families.rope import rotaries
from archcalc.families.shared import FULL, SLIDING, attention, decoder, layer_count, layer_types, model, predictors
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("n_routed_experts", "num_experts"), "rms_norm_eps": ("layernorm_epsilon",)}
# A factor of the values; the chunks of a kernel.
IGNORED = ROUTING | {"attention_value_scale", "attention_chunk_size", "hybrid_block_size"}
RELEASE = {
    "mimo_v2_flash": {
        "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
        "num_attention_heads": 64, "max_position_embeddings": 131072, "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8, "num_local_experts": 256,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, depth = rms_norm(k, 1e-5), layer_count(k)
    k.must_be("n_shared_experts", None)
    swa = switches(k, "hybrid_layer_pattern") or tuple(layer and (layer + 1) % 6 for layer in range(depth))
    types = layer_types(k, depth, tuple(SLIDING if yes else FULL for yes in swa), (FULL, SLIDING))
    turned = rotaries(k, {SLIDING: ("swa_rope_theta", 1e4), FULL: ("rope_theta", 5e6)}, (FULL,), 0.334)
    full = attention(
        k, rotary=turned[FULL], kv_heads=4, head=k.int("head_dim", default=192), o_bias=False,
        v_head_dim=k.int("v_head_dim", default=128), sinks=k.bool("add_full_attention_sink_bias", default=False),
    )  # fmt: skip
    mixers = {FULL: full, SLIDING: _windowed(k, full, turned[SLIDING])}
    freq = switches(k, "moe_layer_freq") or tuple(layer > 0 for layer in range(depth))
    experts = routed(k, correction_bias=True, **weighed(k, "sigmoid", scale=1.0, groups=(1, 1)))
    mlp = mixed(mlp_layer_types(k, lambda: freq), experts, dense(k))
    stack = decoder(k, lambda layer: mixers[types[layer]], mlp, norm)
    return model(k, stack, tie=False, left_out=predictors(k))


def _windowed(k: Keys, full: Attention, turned: Rotary) -> Attention:
    """The windowed layers. `sliding_window_size` counts the tokens before a query, `sliding_window` also its own."""
    before = k.int("sliding_window_size", default=None)
    window = k.int("sliding_window", default=129)
    return Attention(
        k.int("swa_num_attention_heads", default=full.num_attention_heads),
        k.int("swa_num_key_value_heads", default=2 * full.num_key_value_heads),
        k.int("swa_head_dim", default=full.head_dim),
        *(full.q_bias, full.k_bias, full.v_bias, False),
        rotary=turned,
        sliding_window=before + 1 if before else window,
        v_head_dim=k.int("swa_v_head_dim", default=full.v_head_dim),
        sinks=k.bool("add_swa_attention_sink_bias", default=True),
    )
