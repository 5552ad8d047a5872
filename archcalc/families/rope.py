"""Rotary positions from `rope_theta` and `rope_scaling`, or from `rope_parameters` that holds both.

No count depends on them; they are read so that a config says what it says, and to refuse a contradiction.
"""

from __future__ import annotations

from archcalc.config import RopeScaling, Rotary
from archcalc.errors import ConfigError
from archcalc.keys import Keys, label, shown

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", "proportional")
# What the stretches beyond linear and llama3 are described with: read, and no part of a count.
SHAPES = frozenset({
    "alpha", "attention_factor", "attn_factor", "beta_fast", "beta_slow", "extrapolation_factor", "finetuned",
    "long_factor", "short_factor",
    "long_mscale", "short_mscale", "mscale", "mscale_all_dim", "original_max_position_embeddings", "truncate",
    "low_freq_factor", "high_freq_factor", "mrope_section", "mrope_interleaved", "llama_4_scaling_beta",
    "max_position_embeddings",
})  # fmt: skip

SETS = (
    "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "compressed_sparse_attention",
    "heavily_compressed_attention", "main", "compress",
)  # fmt: skip


def rotary(k: Keys, theta: float, share: float = 1.0) -> Rotary:
    """The rotary positions of a config.

    Args:
        theta, share: the family's defaults of the base and of `partial_rotary_factor`.
    """
    old, new = k.nested("rope_scaling"), k.nested("rope_parameters")
    if old and new and old.raw != new.raw:
        raise ConfigError("rope_scaling with rope_parameters: two names of one thing disagree; give only one")
    base = k.float("rope_theta", default=None)
    nested = new or old
    if nested and any(type(value) is dict for value in nested.raw.values()):
        _check_sets(nested)
        return Rotary(base or theta)
    inner = nested.float("rope_theta", default=None) if nested else None
    if None not in (base, inner) and base != inner:
        raise ConfigError(f"rope_theta={base!r} with {nested.prefix}rope_theta={inner!r}: they disagree; give only one")
    base = theta if base is None and inner is None else base if inner is None else inner
    outer_share = k.float("partial_rotary_factor", default=None)
    inner_share = nested.float("partial_rotary_factor", default=None) if nested else None
    given = [value for value in (outer_share, inner_share) if value is not None]
    if len(set(given)) > 1:
        raise ConfigError(f"partial_rotary_factor={given[0]!r} with {given[1]!r}: they disagree; give only one")
    return Rotary(base, _scaling(nested) if nested else None, given[0] if given else share)


def _check_sets(k: Keys) -> None:
    """Read parameters that are given once a layer type, perhaps beside some for all."""
    k.used |= SHAPES | {"rope_theta", "rope_type", "type", "factor", "partial_rotary_factor"}
    for name, value in k.raw.items():
        if type(value) is not dict:
            continue
        if name not in SETS:
            raise ConfigError(
                f"{k.prefix}{label(name)}={shown(value)}: no type of layers; use one of {', '.join(SETS)}"
            )
        one = k.nested(name)
        theta, share = one.float("rope_theta", default=1e4), one.float("partial_rotary_factor", default=1.0)
        Rotary(theta, _scaling(one), share)
    k.finish()


def _scaling(k: Keys) -> RopeScaling | None:
    """The stretch of the rotary frequencies; None for type `default`. Other types than these are refused by name."""
    view = k.view(k.raw, {"rope_type": ("type",)})
    kind = view.choice("rope_type", {name: name for name in KINDS} | {"mrope": "default"}, default="default")
    scaling = None
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        scaling = RopeScaling(kind, *map(k.float, names), k.int("original_max_position_embeddings"))
    elif kind == "linear":
        k.int("original_max_position_embeddings", default=None)  # linear scaling does not depend on it
        scaling = RopeScaling(kind, k.float("factor"))
    elif kind != "default":
        kind = "longrope" if kind == "su" else kind
        scaling = RopeScaling(kind, k.float("factor", default=1.0))
    if kind not in ("llama3", "linear"):
        k.used |= SHAPES
    k.finish()
    return scaling
