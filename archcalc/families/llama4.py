"""model_type llama4_text: attention in chunks, positions in three of four layers, a shared expert beside one of many.

Source: Meta 2025, the published configs and classes of Llama 4; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.errors import ConfigError
from archcalc.families.experts import ROUTING, dense, mixed, own_head, rms_norm, routed, switches
from archcalc.families.rope import rotary
from archcalc.families.shared import CHUNKED, FULL, attention, decoder, layer_count, layer_types, model
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
# How scores are scaled with the position; how a cache is kept.
IGNORED = ROUTING | {
    "attn_temperature_tuning", "floor_scale", "attn_scale", "cache_implementation", "for_llm_compressor",
}  # fmt: skip
RELEASE = {
    "llama4_text": {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "max_position_embeddings": 131072,
        "num_experts_per_tok": 1, "num_local_experts": 16,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = rms_norm(k, 1e-5)
    # The weights are of what the experts read, not of what they give: they need not sum to 1.
    routing = {"scoring": "sigmoid", "norm_topk_prob": False}
    experts = routed(k, "intermediate_size", shared=k.int("intermediate_size"), **routing)
    mlp = mixed(_sparse(k), experts, dense(k, name="intermediate_size_mlp"))
    return model(k, decoder(k, _mixers(k, norm), mlp, norm), tie=False)


def _sparse(k: Keys) -> tuple[bool, ...]:
    """`moe_layers`, or each `interleave_moe_layer_step`-th."""
    step, chosen, depth = k.int("interleave_moe_layer_step", default=1), k.ints("moe_layers"), layer_count(k)
    chosen = tuple(range(step - 1, depth, step)) if chosen is None else chosen
    return tuple(layer in chosen for layer in range(depth))


def _mixers(k: Keys, norm):
    """Positions, a norm without weights and chunks where `no_rope_layers` has a 1; layer_types may move the chunks."""
    depth, interval = layer_count(k), k.int("no_rope_layer_interval", default=4)
    turned = switches(k, "no_rope_layers") if k.raw.get("no_rope_layers") else None
    k.used.add("no_rope_layers")
    turned = turned or tuple((layer + 1) % interval != 0 for layer in range(depth))
    chunk = k.int("attention_chunk_size", default=None if k.given("attention_chunk_size") else 8192)
    types = layer_types(k, depth, tuple(CHUNKED if yes and chunk else FULL for yes in turned), (CHUNKED, FULL))
    if CHUNKED in types and not chunk:
        raise ConfigError("layer_types='chunked_attention': needs attention_chunk_size; give a count of tokens")
    plain = attention(k, kv_heads=8, head=own_head(k, 128))
    qk_norm = replace(norm, weight=False) if k.bool("use_qk_norm", default=True) else None
    positions = {"rotary": rotary(k, 5e5, interleaved=True), "qk_norm": qk_norm}
    kinds = {
        (yes, kind): replace(plain, attention_chunk_size=chunk if kind == CHUNKED else None, **positions if yes else {})
        for yes, kind in set(zip(turned, types, strict=True))
    }
    return lambda layer: kinds[turned[layer], types[layer]]
