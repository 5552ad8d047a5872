"""model_type minimax_m2: norms over all heads at once, half of each head turned, experts with a correction bias.

Source: MiniMax 2025, the published config and classes of MiniMax-M2; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Rotary
from archcalc.errors import ConfigError
from archcalc.families.experts import ROUTING, own_head, rms_norm, routed, switches
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, head_dim, model, predictors, same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"mtp_transformer_layers", "attn_window_size"}
RELEASE = {
    "minimax_m2": {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
        "num_attention_heads": 48, "max_position_embeddings": 196608, "num_experts_per_tok": 8,
        "num_local_experts": 256,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = rms_norm(k, 1e-6)
    k.must_be("use_qk_norm", True)
    k.must_be("qk_norm_type", "per_layer")
    k.must_be("use_routing_bias", True)
    k.must_be("shared_intermediate_size", 0, "a shared expert is not understood yet")
    k.must_be("sliding_window", None)
    if not all(switches(k, "attn_type_list") or (True,)):
        raise ConfigError("attn_type_list=0: linear attention is not understood here; give a 1 for each layer")
    mixer = attention(k, rotary=_rotary(k), kv_heads=8, head=own_head(k, 128), qk_norm=norm, qk_norm_over="all")
    experts = routed(k, "intermediate_size", correction_bias=True, scoring="sigmoid")
    left_out = predictors(k, "num_mtp_modules")
    left_out = left_out if k.bool("use_mtp", default=True) else ()
    return model(k, decoder(k, same(mixer), same(experts), norm), tie=False, left_out=left_out)


def _rotary(k: Keys) -> Rotary:
    """Of the whole head, or of `rotary_dim` of it."""
    width = own_head(k, 128) or head_dim(k, k.int("num_attention_heads"))
    turned = k.int("rotary_dim", default=width)
    if turned > width:
        raise ConfigError(f"rotary_dim={turned}: more than head_dim={width}; give at most that many")
    return rotary(k, 5e6, turned / width)
