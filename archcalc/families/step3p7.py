"""model_types step3p7 (flat) and step3p5: windowed layers with heads of their own number, a gate a head, experts.

Source: StepFun 2026, the published config and classes of Step-3.7-Flash; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Attention, Norm, Rotary
from archcalc.errors import ConfigError
from archcalc.families.experts import ROUTING, after_first, dense, layer_sizes, mixed, own_head, rms_norm, routed
from archcalc.families.gemma2 import query_scale
from archcalc.families.shared import FULL, SLIDING, attention, decoder, layer_count, model, predictors
from archcalc.keys import Keys, shown

ALIASES = {
    "num_local_experts": ("n_routed_experts", "moe_num_experts", "num_experts"),
    "num_experts_per_tok": ("moe_top_k",),
    "num_key_value_heads": ("num_attention_groups",),
    "share_expert_dim": ("share_expert_dims",),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}
# Positions and clamps that may differ by layer, the routing, the precision of a kernel.
IGNORED = ROUTING | {
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factors", "yarn_only_types", "swiglu_limits",
    "swiglu_limits_shared", "moe_router_activation",
    "use_moe_router_bias", "need_fp32_gate", "norm_expert_weight", "att_impl_type", "use_rope_layers", "zero_centered",
    "mtp_layer_types", "mtp_mlp_layer_types", "max_seq_len", "moe_layer_offset", "fp32_gate",
}  # fmt: skip
TEXT = {
    "vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
    "num_attention_heads": 64, "max_position_embeddings": 128000, "moe_intermediate_size": 1280,
    "num_experts_per_tok": 8, "num_local_experts": 288, "share_expert_dim": 1280,
}  # fmt: skip
RELEASE = {"step3p5": TEXT, "step3p7": TEXT}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, left_out = replace(rms_norm(k, 1e-5), offset=1.0), predictors(k)
    k.must_be("n_shared_experts", 1)
    for name in ("use_qk_norm", "use_head_wise_attn_gate", "use_moe"):
        k.must_be(name, True)
    for name in ("sink", "use_mfa"):
        k.must_be(name, False)
    k.must_be("moe_every_n_layer", 1)
    routing = {"scoring": "sigmoid", "routed_scaling_factor": k.float("moe_router_scaling_factor", default=1.0)}
    experts = routed(k, shared=k.int("share_expert_dim"), correction_bias=True, **routing)
    experts = replace(experts, expert=replace(experts.expert, bias=False))  # mlp_bias is of the other feed-forwards
    mixers, mlp = _mixers(k, norm), mixed(_sparse(k), experts, dense(k))
    return model(k, decoder(k, mixers.__getitem__, mlp, norm), tie=False, left_out=left_out)


def _mixers(k: Keys, norm: Norm) -> list[Attention]:
    types = _trimmed(k, "layer_types", (FULL, SLIDING)) or (FULL,) * layer_count(k)
    window = k.int("sliding_window", default=None)
    if SLIDING in types and not window:
        raise ConfigError("layer_types='sliding_attention': needs a window; give sliding_window, a count of tokens")
    scale = query_scale(k) if k.raw.get("query_pre_attn_scalar") is not None else None
    parts = {"rotary": Rotary(1e4), "qk_norm": norm, "output_gate": "head", "scale": scale}
    plain = attention(k, kv_heads=8, head=own_head(k, 128), **parts)
    heads = {FULL: plain.num_attention_heads, SLIDING: _windowed_heads(k)}
    heads = layer_sizes(k, num_attention_heads=tuple(heads[kind] for kind in types))["num_attention_heads"]
    windows = [window if kind == SLIDING else None for kind in types]
    pairs = list(zip(heads, windows, strict=True))
    found = {(n, w): replace(plain, num_attention_heads=n, sliding_window=w) for n, w in pairs}
    return [found[pair] for pair in pairs]


def _windowed_heads(k: Keys) -> int:
    """Query heads of a windowed layer; the older key for them also repeats what it shares with the others."""
    heads, older = k.int("num_attention_heads"), k.nested("attention_other_setting")
    given = k.int("num_sliding_attention_heads", default=None)
    if older is None:
        return given or heads
    inner = older.int("num_attention_heads", default=heads)
    same = ("num_attention_groups", k.int("num_key_value_heads", default=8)), ("head_dim", own_head(k, 128))
    for name, allowed in same:
        older.must_be(name, allowed, "windowed layers differ in their query heads only")
    older.must_be("attention_type", SLIDING)
    older.used.add("true_head_dim")
    older.finish()
    return given or inner


def _sparse(k: Keys) -> tuple[bool, ...]:
    """Layers with experts: `mlp_layer_types`, or the numbers in `moe_layers_enum`, or all but the first three."""
    depth, written = layer_count(k), k.raw.get("moe_layers_enum")
    if "mlp_layer_types" in k.raw or written is None:
        types = _trimmed(k, "mlp_layer_types", ("dense", "sparse"))
        k.used.add("moe_layers_enum")
        first = after_first(k, default=3)
        return first if types is None else tuple(kind == "sparse" for kind in types)
    items = written.split(",") if type(written) is str else written
    if type(items) is not list or not all(str(item).strip().isdecimal() and len(str(item)) < 9 for item in items):
        raise ConfigError(f"moe_layers_enum={shown(written)}: must list layer numbers; write '3,4,5'")
    k.used.add("moe_layers_enum")
    chosen = {int(item) for item in items}
    return tuple(layer in chosen for layer in range(depth))


def _trimmed(k: Keys, name: str, allowed: tuple) -> tuple[str, ...] | None:
    """One entry a layer; a list may go on with those of the layers that predict further tokens."""
    types, depth = k.strings(name, allowed), layer_count(k)
    more = k.count("num_nextn_predict_layers", default=0)
    if types is None:
        return None
    if len(types) not in (depth, depth + more):
        raise ConfigError(f"{name} of {len(types)} entries with num_hidden_layers={depth}: one a layer; give {depth}")
    return types[:depth]
