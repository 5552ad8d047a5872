"""model_type ernie4_5_moe: experts in a range of layers, each so-manieth of it, shared ones beside them.

Source: Baidu ERNIE team 2025, "ERNIE 4.5 Technical Report"; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Head
from archcalc.families.experts import ROUTING, dense, mixed, rms_norm, routed
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, layer_count, model, predictors, same
from archcalc.keys import Keys

ALIASES = {
    "num_local_experts": ("moe_num_experts", "num_experts"),
    "num_experts_per_tok": ("moe_k",),
    "attention_bias": ("use_bias",),
}
# Losses, dropout and kernels of its training.
IGNORED = ROUTING | {
    "moe_use_aux_free", "moe_aux_loss_lambda", "moe_orthogonal_loss_lambda", "moe_z_loss_lambda", "moe_dropout_prob",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "multi_token_pred_lambda", "fuse_rope", "fuse_softmax_mask",
    "fuse_attention_qkv", "fuse_attention_ffn", "use_flash_attention", "use_recompute", "moe_group",
}  # fmt: skip
RELEASE = {
    "ernie4_5_moe": {
        "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
        "num_experts_per_tok": 6, "num_local_experts": 64,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys. The bias that balances the experts is a parameter here."""
    k.must_be("use_rmsnorm", True)
    depth, step, first = layer_count(k), k.int("moe_layer_interval", default=1), k.count("moe_layer_start_index", 1)
    last = depth - 1 if k.raw.get("moe_layer_end_index", -1) == -1 else k.count("moe_layer_end_index", depth - 1)
    k.used.add("moe_layer_end_index")
    sparse = tuple((layer + 1) % step == 0 and first <= layer <= last for layer in range(depth))
    experts = routed(k, shared=k.count("moe_num_shared_experts", 2) * k.int("moe_intermediate_size"), router_bias=True)
    mixer, plain = attention(k, rotary=rotary(k, 5e5, interleaved=True), kv_heads=4), dense(k)
    biased = k.bool("attention_bias", default=False)  # of every matrix but the router's and the routed experts'
    if biased:
        plain = replace(plain, bias=True)
        experts = replace(experts, shared=experts.shared and replace(experts.shared, bias=True))
    stack = decoder(k, same(mixer), mixed(sparse, experts, plain), rms_norm(k, 1e-5))
    return model(k, stack, tie=True, head=Head(bias=biased), left_out=predictors(k))
