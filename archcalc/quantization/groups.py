"""Quantization configs that say each group of modules by itself: compressed-tensors and Model Optimizer."""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.keys import Keys, shown
from archcalc.quantization.schemes import ALGORITHMS, MXFP4, Scheme, group_size, names, one_of_bits

STRATEGIES = ("tensor", "channel", "block")
KNOWN_LAYOUTS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)  # fmt: skip
LAYOUTS = (*KNOWN_LAYOUTS, "dense", "mixed-precision", "marlin-24", "sparse-bitmask", "sparse-24-bitmask")
# Said beside the algorithm: of the cache, of activations, or once more.
MODELOPT_KEYS = frozenset({
    "quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "producer", "group_size", "moe_quant_algo", "config_groups",
    "ignore", "quantized_layers", "exclude_modules", "has_zero_point", "pre_quant_scale",
})  # fmt: skip
COMPRESSED_TOOL = frozenset({
    "quantization_status", "global_compression_ratio", "kv_cache_scheme", "sparsity_config", "transform_config",
    "version", "run_compressed",
})  # fmt: skip


def compressed_tensors(k: Keys) -> dict:
    """compressed-tensors: groups of targets, each with its weights' format; scales have the type of the model."""
    layout = k.choice("format", {name: name for name in LAYOUTS}, default="dense")
    k.used |= COMPRESSED_TOOL
    groups = k.nested("config_groups")
    if groups is None:
        raise ConfigError(f"{k.prefix}config_groups: missing, and never guessed; give the groups of quantized modules")
    found, rules = None, []
    for name in list(groups.raw):
        group = groups.nested(name)
        if group is None:
            continue
        targets = names(group, "targets") or ("Linear",)
        inputs = group.nested("input_activations")
        own = group.choice("format", {n: n for n in LAYOUTS}, default=layout)
        group.used |= {"output_activations"}
        scheme = _weights(group, own, inputs)
        group.finish()
        for target in targets if scheme else ():
            found, rules = (scheme, rules) if target == "Linear" else (found, [*rules, (target, scheme)])
    return {
        "scheme": found,
        "rules": tuple(rules),
        "excluded": names(k, "ignore") or (),
        "unknown": None if layout in KNOWN_LAYOUTS else f"format={layout}: its layout is not described",
    }


def _weights(group: Keys, layout: str, inputs: Keys | None) -> Scheme | None:
    w = group.nested("weights")
    if w is None:
        return None
    bits, kind = (
        one_of_bits(w, "num_bits", (2, 3, 4, 8)),
        w.choice("type", {"int": "int", "float": "float"}, default="int"),
    )
    strategy = w.choice("strategy", {n: n for n in (*STRATEGIES, "group")}, default="tensor")
    symmetric = w.bool("symmetric", default=True)
    structure, order = w.raw.get("block_structure"), w.raw.get("actorder")
    w.used |= {"block_structure", "actorder", "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
    size = group_size(w, 0) if w.raw.get("group_size") is not None else 0
    w.used.add("group_size")
    w.finish()
    static = 0
    if inputs is not None:
        static = 2 if inputs.raw.get("dynamic") is False else 0
    if layout.startswith("nvfp4"):
        return Scheme(4, (1, 16), 8, matrix_bytes=8 if inputs is not None else 4)
    if layout.startswith("mxfp4"):
        return MXFP4
    block = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy, (1, size))
    if strategy == "block":
        if type(structure) is not list or len(structure) != 2 or any(type(n) is not int or n < 1 for n in structure):
            raise ConfigError(f"{w.prefix}block_structure={shown(structure)}: must be two sizes; give [128, 128]")
        block = (structure[0], structure[1])
    packed = layout == "pack-quantized" or (layout == "dense" and bits < 8 and kind == "int")
    word, fixed = (32, 16) if packed else (8, 0)  # packed: the shape, two 64-bit numbers
    return Scheme(
        bits if packed else 8, block, 16, zeros=not symmetric, word=word, matrix_bytes=fixed + static,
        column_bytes=4 if order == "group" else 0,
    )  # fmt: skip


def modelopt(k: Keys) -> dict:
    """Model Optimizer: one algorithm for all but the excluded modules, or an algorithm a module."""
    algo = k.choice("quant_algo", {name: name for name in (*ALGORITHMS, "MIXED_PRECISION")})
    k.used |= MODELOPT_KEYS
    excluded = names(k, "exclude_modules", "ignore")
    rules, layers = [], k.nested("quantized_layers")
    for name in layers.raw if layers else ():
        layer = layers.nested(name)
        if layer is not None:
            rules.append((name[:200], ALGORITHMS[layer.choice("quant_algo", {n: n for n in ALGORITHMS})]))
            layer.used |= {"group_size"}
            layer.finish()
    if algo != "MIXED_PRECISION":
        _agree(k, algo)
    elif not rules:
        raise ConfigError(f"{k.prefix}quantized_layers: missing, and never guessed; give each module's quant_algo")
    return {
        "scheme": ALGORITHMS.get(algo),
        "rules": tuple(rules),
        "excluded": excluded or (),
        "unknown": "neither exclude_modules nor ignore: which modules stay as they are is not said"
        if excluded is None and not rules
        else None,
    }


def _agree(k: Keys, algo: str) -> None:
    """`config_groups` says the same a second time."""
    groups = k.nested("config_groups")
    for name in groups.raw if groups else ():
        weights = (groups.nested(name) or Keys({})).nested("weights")
        bits = weights.int("num_bits") if weights else ALGORITHMS[algo].bits
        if bits != ALGORITHMS[algo].bits:
            raise ConfigError(f"{weights.prefix}num_bits={bits} with quant_algo={algo}: they disagree; give only one")
