"""What the families of mixtures of experts have in common: routed feed-forwards and the layers that have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from archcalc.config import FeedForward, MixtureOfExperts, Norm
from archcalc.errors import ConfigError
from archcalc.families.shared import FULL, SLIDING, feed_forward, layer_count, layer_windows
from archcalc.keys import Keys, shown

# How experts are chosen, weighed and balanced: no count depends on it. A family reads what its class reads (`weighed`).
ROUTING = frozenset({
    "aux_loss_alpha", "ep_size", "expert_selection_fn", "moe_capacity", "moe_gate", "moe_norm_min", "moe_router_dtype",
    "n_group",
    "norm_topk_prob", "num_expert_group", "num_limited_groups", "output_router_logits", "route_norm", "route_scale",
    "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "score_func", "scoring_func", "seq_aux",
    "topk_group", "topk_method",
})  # fmt: skip
DENSE, SPARSE = "dense", "sparse"


def rms_norm(k: Keys, eps: float) -> Norm:
    """`eps` is the family's default of `rms_norm_eps`."""
    return Norm("rmsnorm", k.float("rms_norm_eps", default=eps))


def routed(
    k: Keys,
    size: str = "moe_intermediate_size",
    shared: int = 0,
    counts: tuple[int, int] | None = None,
    act: str = "silu",
    **parts: Any,
) -> MixtureOfExperts:
    """Experts of three matrices.

    Args:
        size: the key of an expert's width. shared: the width of the feed-forward beside them; 0 for none.
        counts: how many there are and a token goes to, where the family has its own keys for them.
        act: the family's default of `hidden_act`. parts: further fields of MixtureOfExperts.
    """
    expert = feed_forward(k, act=act, gated=True, name=size)
    beside = replace(expert, intermediate_size=shared) if shared else None
    counts = counts or (k.int("num_local_experts"), k.int("num_experts_per_tok"))
    return MixtureOfExperts(expert, *counts, beside, **parts)


def weighed(
    k: Keys,
    scoring: str = "softmax",
    norm: bool | None = True,
    scale: float | None = None,
    groups: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """How the outputs of experts are weighed, as fields of MixtureOfExperts.

    Args:
        scoring: what the router makes of its logits.
        norm, scale, groups: the family's defaults of `norm_topk_prob`, of `routed_scaling_factor` and of `n_group`
            with `topk_group`; None: its class does not read them.
    """
    found = {"scoring": scoring}
    if norm is not None:
        found["norm_topk_prob"] = k.bool("norm_topk_prob", default=norm)
    if scale is not None:
        found["routed_scaling_factor"] = k.float("routed_scaling_factor", default=scale)
    if groups:
        found |= {"n_group": k.int("n_group", default=groups[0]), "topk_group": k.int("topk_group", default=groups[1])}
    return found


def dense(k: Keys, **sizes: Any) -> FeedForward:
    """The feed-forward of a layer without experts."""
    return feed_forward(k, act="silu", gated=True, **sizes)


def mixed(sparse: tuple[bool, ...], experts: MixtureOfExperts, plain: FeedForward) -> Callable[[int], Any]:
    """The feed-forward of each layer; `sparse` says which layers have experts."""
    return lambda layer: experts if sparse[layer] else plain


def after_first(k: Keys, name: str = "first_k_dense_replace", default: int = 0) -> tuple[bool, ...]:
    """Sparse layers where the first few, so many as the key `name` says, are dense."""
    first = k.count(name, default=default)
    return tuple(layer >= first for layer in range(layer_count(k)))


def stepped(k: Keys) -> tuple[bool, ...]:
    """Sparse layers of Qwen: each `decoder_sparse_step`-th that `mlp_only_layers` does not name."""
    step, plain = k.int("decoder_sparse_step", default=1), k.ints("mlp_only_layers") or ()
    return tuple((layer + 1) % step == 0 and layer not in plain for layer in range(layer_count(k)))


def mlp_layer_types(k: Keys, default: Callable[[], tuple[bool, ...]]) -> tuple[bool, ...]:
    """Sparse layers by `mlp_layer_types`, one a layer; `default` makes those of a config without."""
    types = k.strings("mlp_layer_types", (DENSE, SPARSE))
    return default() if types is None else per_layer(k, "mlp_layer_types", tuple(kind == SPARSE for kind in types))


def switches(k: Keys, name: str) -> tuple[bool, ...] | None:
    """A list of 0 and 1, or of false and true, one a layer, or None."""
    if type(raw := k.raw.get(name)) is list and raw and all(type(value) is bool for value in raw):
        k.used.add(name)
        return per_layer(k, name, tuple(raw))
    values = k.ints(name)
    return None if values is None else per_layer(k, name, tuple(value != 0 for value in values))


def per_layer(k: Keys, name: str, values: tuple) -> tuple:
    """The values, of which there must be one a layer."""
    depth = layer_count(k)
    if len(values) != depth:
        raise ConfigError(f"{name} of {len(values)} entries with num_hidden_layers={depth}: one a layer; give {depth}")
    return values


def uniform(k: Keys, name: str, default: int) -> int:
    """A size that a config may repeat for each layer."""
    values = [k.raw[spelt] for spelt in (name, *k.aliases.get(name, ())) if k.raw.get(spelt) is not None]
    if not any(type(value) is list for value in values):
        return k.int(name, default=default)
    if len(set(values := k.ints(name))) != 1:
        raise ConfigError(f"{name}={shown(values)}: layers that differ in it are not understood yet; give one number")
    return values[0]


def layer_sizes(k: Keys, **defaults: tuple[int, ...]) -> dict[str, list[int]]:
    """Sizes of each layer: what its number maps to in `per_layer_config`, else the default.

    Args:
        defaults: for each key that may differ by layer, its value in every layer.
    """
    outer, found = k.nested("per_layer_config"), {name: list(values) for name, values in defaults.items()}
    for layer in range(layer_count(k)) if outer else ():
        name = f"{layer:02}" if f"{layer:02}" in outer.raw else str(layer)  # transformers 5 writes two digits
        if inner := outer.nested(name):
            for sizes_name, sizes in found.items():
                sizes[layer] = inner.int(sizes_name, default=sizes[layer])
            inner.finish()
    if outer:
        outer.finish()
    return found


def own_head(k: Keys, default: int) -> int | None:
    """`head_dim` in a family whose class has a number for an absent one; a null means hidden_size / heads."""
    return k.int("head_dim", default=None if k.given("head_dim") else default)


def switched_windows(k: Keys, window: int, types: Callable[[int], bool] | None) -> tuple[int | None, ...]:
    """The windows of a Qwen: none without `use_sliding_window`.

    Args:
        window: the family's default. types: whether a layer has it where layer_types is absent; None: they all do.
    """
    depth = layer_count(k)
    if not k.bool("use_sliding_window", default=False):
        k.count("sliding_window", default=None)
        if SLIDING in (k.strings("layer_types", (FULL, SLIDING)) or ()):
            raise ConfigError("layer_types='sliding_attention' with use_sliding_window=False: they disagree; drop one")
        return (None,) * depth
    found = types and tuple(SLIDING if types(layer) else FULL for layer in range(depth))
    return layer_windows(k, depth, window, found)
