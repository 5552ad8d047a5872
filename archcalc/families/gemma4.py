"""model_type gemma4_text: wide heads in full layers whose keys may be their values, experts beside the feed-forward.

The sizes E2B and E4B have embeddings of each layer's own, and last layers that read the cache of earlier ones.
Source: Google DeepMind 2026, the published configs and classes of Gemma 4; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Attention, FeedForward, Head, MixtureOfExperts
from archcalc.errors import ConfigError
from archcalc.families.experts import layer_sizes, own_head, rms_norm, routed
from archcalc.families.rope import rotaries
from archcalc.families.shared import (
    FULL,
    SLIDING,
    attention,
    decoder,
    every,
    feed_forward,
    layer_count,
    layer_types,
    model,
    stack,
)
from archcalc.keys import Keys
from archcalc.parts.per_layer import PerLayerInput

ALIASES = {
    "hidden_act": ("hidden_activation",),
    "num_local_experts": ("num_experts",),
    "num_experts_per_tok": ("top_k_experts",),
}
IGNORED = frozenset({"cache_implementation", "query_pre_attn_scalar"})
RELEASE = {
    "gemma4_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "vocab_size_per_layer_input": 262144,
    }
}  # fmt: skip


ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}  # of a config without rope_parameters


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, depth = rms_norm(k, 1e-6), layer_count(k)
    if k.str("use_bidirectional_attention", default="vision") != "vision":  # it only concerns tokens of images
        k.must_be("use_bidirectional_attention", "vision", "a language model that looks ahead is not understood yet")
    types = list(layer_types(k, depth, every(6, FULL, SLIDING, depth), (FULL, SLIDING)))
    types[-1] = FULL  # the class forces the last layer to be one
    shared = _shared(k, types)
    mixers = _mixers(k, types, shared, norm)
    mlps = _mlps(k, norm)
    found = decoder(k, lambda layer: mixers[layer], lambda layer: mlps[shared[layer]], norm, "sandwich")
    width, rows = k.count("hidden_size_per_layer_input", default=256), k.int("vocab_size_per_layer_input")
    own = PerLayerInput(width, rows, norm) if width else None
    residual = replace(found.layers[0].residual, scalar=True, per_layer=own)
    blocks = stack(depth, lambda layer: replace(found.layers[layer], residual=residual), found.final_norm)
    head = Head(logit_softcap=k.float("final_logit_softcapping", default=None))
    return model(k, blocks, tie=True, head=head, scale_embedding=True)


def _shared(k: Keys, types: list[str]) -> tuple[bool, ...]:
    """Whether a layer reads the keys and values of the last earlier layer of its type that has its own."""
    count = k.count("num_kv_shared_layers", default=0)
    own = types[: max(0, len(types) - count)]
    if set(own) != set(types):
        raise ConfigError(f"num_kv_shared_layers={count}: some type of layer then has no keys at all; lower it")
    return tuple(layer >= len(own) for layer in range(len(types)))


def _mixers(k: Keys, types: list[str], shared: tuple[bool, ...], norm) -> list[Attention]:
    head, kv = own_head(k, 256), k.int("num_key_value_heads")
    same, again = k.bool("attention_k_eq_v", default=False), k.raw.get("per_layer_config") is not None
    wide = k.int("global_head_dim", default=head if again else 512)
    few = k.int("num_global_key_value_heads", default=None)
    few = kv if again or not same or few is None else few
    sizes = layer_sizes(
        k,
        head_dim=tuple(wide if kind == FULL else head for kind in types),
        num_key_value_heads=tuple(few if kind == FULL else kv for kind in types),
    )
    window = k.int("sliding_window", default=512)
    turned = rotaries(k, dict.fromkeys((SLIDING, FULL), ("rope_theta", 1e4)), (SLIDING, FULL), absent=ROPE)
    kinds = dict.fromkeys(zip(types, shared, *sizes.values(), strict=True))
    for kind, reads, width, heads in kinds:
        kinds[kind, reads, width, heads] = attention(
            k, head=width, kv=heads, window=window if kind == SLIDING else None, qk_norm=norm, rotary=turned[kind],
            values_are_keys=same and kind == FULL, shares_cache=reads, scale=1.0,
        )  # fmt: skip
    return [kinds[found] for found in zip(types, shared, *sizes.values(), strict=True)]


def _mlps(k: Keys, norm) -> dict[bool, FeedForward | MixtureOfExperts]:
    """The feed-forward of layers that read an earlier cache (True; it may be twice as wide) and of the others."""
    plain = feed_forward(k, act="gelu_pytorch_tanh", gated=True)
    twice = k.bool("use_double_wide_mlp", default=False)
    found = {False: plain, True: replace(plain, intermediate_size=(1 + twice) * plain.intermediate_size)}
    if not k.bool("enable_moe_block", default=False):
        k.used |= {"num_experts", "top_k_experts", "moe_intermediate_size", "num_local_experts"}
        return found
    experts = routed(k, act="gelu_pytorch_tanh", router_scales=True, norms=norm)
    return {wide: replace(experts, shared=mlp) for wide, mlp in found.items()}
