"""Rotary positions from `rope_theta` and `rope_scaling`, or from `rope_parameters` that holds both.

No count depends on them, but every value that a model computes does. Defaults are those of the Hugging Face classes.
"""

from __future__ import annotations

from math import log, sqrt

from archcalc.config import RopeScaling, Rotary
from archcalc.errors import ConfigError
from archcalc.families.shared import FULL
from archcalc.keys import Keys, label, shown

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", "proportional")
# What releases write beside the keys of a stretch: read by no class, or (mrope) of no effect on text alone.
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


def rotary(
    k: Keys, theta: float, share: float = 1.0, *, positions: int | None = None, absent: dict | None = None, **parts
) -> Rotary:
    """The rotary positions of a config, the same in all layers.

    Args:
        theta, share: the family's defaults of the base and of `partial_rotary_factor`.
        positions: its default of `max_position_embeddings`. absent: the parameters that it takes where there are none.
        parts: further fields of Rotary.
    """
    nested = _given(k, absent)
    defaults = share, positions, parts
    if nested is None or not _by_type(nested):
        return _one(k, nested, "rope_theta", theta, *defaults)
    found = {name: _one(k, one, "rope_theta", theta, *defaults) for name, one in _sets(nested).items()}
    return found.get(FULL) or next(iter(found.values()))


def rotaries(
    k: Keys,
    bases: dict[str, tuple[str, float]],
    scaled: tuple[str, ...],
    share: float = 1.0,
    *,
    positions: int | None = None,
    absent: dict | None = None,
    **parts,
) -> dict[str, Rotary]:
    """The rotary positions of each type of layer, which may have parameters of its own.

    Args:
        bases: by type of layer, the older key of its base and the family's default of it.
        scaled: the types that parameters without a type stretch. Others are as in `rotary`.
    """
    nested = _given(k, absent)
    typed = _sets(nested) if nested and _by_type(nested) else {}
    made = {}
    for kind, (name, theta) in bases.items():
        own = typed.get(kind) if typed else nested if kind in scaled else None
        made[kind] = _one(k, own, name, theta, share, positions, parts)
    for kind in typed.keys() - bases.keys():  # of layers that there are not: it must be well-formed
        _one(k, typed[kind], "rope_theta", 1e4, share, positions, {})
    return made


def score_factor(k: Keys, turned: Rotary) -> float:
    """What the scores of latent attention are multiplied by, beside 1 / sqrt(width): more with `mscale_all_dim`.

    Source: the released code of DeepSeek-V2.
    """
    nested, scaling = _given(k), turned.rope_scaling
    weight = _weight(nested, "mscale_all_dim") if nested and scaling else 0.0
    return _mscale(scaling.factor, weight) ** 2 if weight else 1.0


def _given(k: Keys, absent: dict | None = None) -> Keys | None:
    """The object that holds the parameters, under either of its names; `absent` stands for one that is not there."""
    old, new = k.nested("rope_scaling"), k.nested("rope_parameters")
    if old and new and old.raw != new.raw:
        raise ConfigError("rope_scaling with rope_parameters: two names of one thing disagree; give only one")
    return new or old or (Keys(absent, owner=k.owner, prefix="rope_parameters.") if absent else None)


def _by_type(nested: Keys) -> bool:
    return any(type(value) is dict for value in nested.raw.values())


def _sets(nested: Keys) -> dict[str, Keys]:
    """The parameters of each type of layer; those beside them are for no layer and only read."""
    nested.used |= SHAPES | {"rope_theta", "rope_type", "type", "factor", "partial_rotary_factor"}
    for name, value in nested.raw.items():
        if type(value) is dict and name not in SETS:
            raise ConfigError(
                f"{nested.prefix}{label(name)}={shown(value)}: no type of layers; use one of {', '.join(SETS)}"
            )
    found = {name: nested.nested(name) for name, value in nested.raw.items() if type(value) is dict}
    nested.finish()
    return found


def _one(k: Keys, nested: Keys | None, name: str, theta: float, share: float, positions: int | None, parts: dict):
    """One Rotary. Arguments are as in `rotary`; `name` is the key of its base outside the parameters."""
    base = _agreed(k, name, nested, "rope_theta", theta)
    if base <= 0:
        spelt = name if k.float(name, default=None) is not None else f"{nested.prefix}rope_theta"
        raise ConfigError(f"{spelt}={base!r}: must be a positive number; 10000.0 is usual")
    share = _agreed(k, "partial_rotary_factor", nested, "partial_rotary_factor", share)
    return Rotary(base, _scaling(nested, k, positions) if nested else None, share, **parts)


def _agreed(k: Keys, name: str, nested: Keys | None, inner: str, default: float) -> float:
    """A number that may stand outside the parameters, inside, or on both sides if they agree."""
    outside = k.float(name, default=None)
    inside = nested.float(inner, default=None) if nested else None
    if None not in (outside, inside) and outside != inside:
        raise ConfigError(f"{name}={outside!r} with {nested.prefix}{inner}={inside!r}: they disagree; give only one")
    return next((value for value in (outside, inside) if value is not None), default)


def _scaling(k: Keys, outer: Keys, positions: int | None) -> RopeScaling | None:
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
    elif kind == "yarn":
        scaling = _yarn(k, *_lengths(k, outer, positions))
    elif kind in ("longrope", "su"):
        scaling = _longrope(k, *_lengths(k, outer, positions))
    elif kind == "dynamic":
        scaling = _dynamic(k, _context(outer, positions))
    elif kind == "proportional":
        scaling = RopeScaling(kind, k.float("factor", default=1.0))
    if kind not in ("llama3", "linear"):
        k.used |= SHAPES
    k.finish()
    return scaling


def _context(outer: Keys, positions: int | None) -> int | None:
    """The longest context, given or the family's default."""
    given = outer.int("max_position_embeddings", default=None)
    return given or positions or outer.release.get("max_position_embeddings")


def _lengths(k: Keys, outer: Keys, positions: int | None) -> tuple[int, int]:
    """(the context before it was stretched, the longest context); the first may stand beside the parameters."""
    name, context = "original_max_position_embeddings", _context(outer, positions)
    before, inside = outer.int(name, default=None), k.int(name, default=None)
    if None not in (before, inside) and before != inside:
        raise ConfigError(f"{name}={before} with {k.prefix}{name}={inside}: they disagree; give only one")
    original = before or inside or context
    if original is None:
        raise ConfigError(f"{k.prefix}{name}: missing, and never guessed; give {name}")
    return original, context or original


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0


def _weight(k: Keys, name: str) -> float:
    value = k.float(name, default=0.0)
    if not 0 <= value <= 1000:
        raise ConfigError(f"{k.prefix}{name}={value!r}: must lie between 0 and 1000; 1.0 is usual")
    return value


def _yarn(k: Keys, original: int, context: int) -> RopeScaling:
    factor = k.float("factor", default=None) or context / original
    numerator, denominator = _weight(k, "mscale"), _weight(k, "mscale_all_dim")
    derived = _mscale(factor)
    if numerator and denominator:
        derived = _mscale(factor, numerator) / _mscale(factor, denominator)
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=original,
        beta_fast=k.float("beta_fast", default=None) or 32.0,
        beta_slow=k.float("beta_slow", default=None) or 1.0,
        truncate=k.bool("truncate", default=True),
        attention_factor=k.float("attention_factor", default=derived),
    )


def _longrope(k: Keys, original: int, context: int) -> RopeScaling:
    """Its factor only gives the attention factor; the stretch of each pair is listed."""
    factor = max(k.float("factor", default=None) or context / original, 1.0)
    derived = sqrt(1 + log(factor) / log(original)) if factor > 1 and original > 1 else 1.0
    return RopeScaling(
        "longrope",
        factor,
        original_max_position_embeddings=original,
        attention_factor=k.float("attention_factor", default=derived),
        long_factor=_numbers(k, "long_factor"),
        short_factor=_numbers(k, "short_factor"),
    )


def _dynamic(k: Keys, context: int | None) -> RopeScaling:
    """Nothing is stretched up to the longest context of the config."""
    return RopeScaling("dynamic", k.float("factor", default=1.0), original_max_position_embeddings=context or 8192)


def _numbers(k: Keys, name: str) -> tuple[float, ...]:
    """A list of finite numbers; none where it is absent."""
    k.used.add(name)
    values = k.raw.get(name)
    if values is None:
        return ()
    finite = type(values) is list and all(type(x) in (int, float) and -1.7e308 < x < 1.7e308 for x in values)
    if not finite:
        raise ConfigError(f"{k.prefix}{name}={shown(values)}: must be a list of numbers; write [1.0, 1.05, ...]")
    return tuple(map(float, values))
