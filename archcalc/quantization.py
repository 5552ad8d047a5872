"""How a checkpoint stores its matrices, read strictly from `quantization_config`. Parameters do not depend on it.

A method stores some matrices (`Scheme`) and leaves the rest as they are. What is counted from it: `archcalc.checkpoint`.
Sources: the Hugging Face quantization configs; the layouts of the files that AutoGPTQ, AutoAWQ, bitsandbytes,
compressed-tensors and NVIDIA's Model Optimizer write; OCP microscaling formats v1.0 (mxfp4, mxfp8).
"""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import ConfigError
from archcalc.keys import Keys, shown

MOST_NAMES = 100_000  # of modules in one config


@dataclass(frozen=True)
class Scheme:
    """How one matrix of `out` rows and `in` columns is stored.

    Args:
        bits: of a weight, packed into words of `word` bits along `packed`: `in`, `out`, or `flat` over all elements.
        block: (rows, columns) that share a scale, 0 for all; `flat`: so many elements in a row share one instead.
        scale_bits: of a scale. zeros: a zero point of `bits` beside each scale, packed along the rows.
        matrix_bytes: of what a matrix has once: the scale of its scales, the scale of its input, a table of values.
        column_bytes: of what each input column has: the index of its group.
        nested: scales that share an fp32 scale of their own, where they are quantized too.
    """

    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bits: int = 32
    zeros: bool = False
    word: int = 8
    packed: str = "in"
    flat: int = 0
    matrix_bytes: int = 0
    column_bytes: int = 0
    nested: int = 0

    def stored(self, rows: int, columns: int) -> tuple[int, int, int]:
        """(bytes of packed weights, bytes of scales and the like, elements of the packed storage)."""
        per_row, lines = {"in": (columns, rows), "out": (rows, columns), "flat": (rows * columns, 1)}[self.packed]
        words = lines * _parts(per_row * self.bits, self.word)
        scales = self.matrix_bytes + self.column_bytes * columns
        if self.flat:
            count = _parts(rows * columns, self.flat)
            scales += count * self.scale_bits // 8 + (4 * _parts(count, self.nested) if self.nested else 0)
        else:
            high, wide = (_parts(size, step) if step else 1 for size, step in zip((rows, columns), self.block))
            scales += high * wide * self.scale_bits // 8
            scales += wide * _parts(rows * self.bits, self.word) * self.word // 8 if self.zeros else 0
        return words * self.word // 8, scales, words


def _parts(size: int, step: int) -> int:
    return -(-size // step)


@dataclass(frozen=True)
class Quantization:
    """Which matrices a checkpoint stores in which way.

    Args:
        scheme: of every matrix that `where` names and `excluded` does not; None: only `rules` say.
        rules: (name of a module, its scheme), for checkpoints that mix schemes.
        excluded: names of modules that stay as they are: whole names, their ends, globs, or `re:` expressions.
        where: `linear`, every linear layer; `blocks`, those of blocks; `experts`, the routed experts.
        plain_bytes: of an element that is not quantized.
        unknown: why the size of the file cannot be derived; None where it can.
    """

    method: str
    scheme: Scheme | None
    excluded: tuple[str, ...] = ()
    rules: tuple[tuple[str, Scheme], ...] = ()
    where: str = "linear"
    plain_bytes: int = 2
    unknown: str | None = None


def quantization(k: Keys) -> Quantization | None:
    """What the `quantization_config` of a model's keys says; None where there is none.

    Raises:
        ConfigError: a method, or a key of it, that is not understood.
    """
    q = k.nested("quantization_config")
    if q is None:
        return None
    method = q.str("quant_method", default="modelopt" if "quant_algo" in q.raw else None)
    if method is None:
        method = "bitsandbytes" if q.given("load_in_4bit") or q.given("load_in_8bit") else q.str("quant_method")
    if method not in METHODS:
        raise ConfigError(
            f"{q.prefix}quant_method={shown(method)}: not understood; use one of {', '.join(METHODS)}, or remove "
            "quantization_config (parameters do not depend on it)"
        )
    fields = METHODS[method](q)
    q.finish()
    if k.raw.get("expert_dtype") is not None:
        fields["unknown"] = f"expert_dtype={shown(k.raw['expert_dtype'])} beside {method}: two formats in one file"
    wide = "float32" in (k.raw.get("dtype"), k.raw.get("torch_dtype"))
    return Quantization(method, **fields, plain_bytes=4 if wide else 2)


def _names(k: Keys, *keys: str) -> tuple[str, ...] | None:
    """The names of modules under the first of these keys that is there; None where none is."""
    k.used.update(keys)
    given = [(key, k.raw[key]) for key in keys if k.raw.get(key) is not None]
    if not given:
        return None
    key, value = given[0]
    if type(value) is not list or not all(type(name) is str and len(name) <= 200 for name in value):
        raise ConfigError(f"{k.prefix}{key}={shown(value)}: must be a list of names of modules; give strings or null")
    if len(value) > MOST_NAMES:
        raise ConfigError(f"{k.prefix}{key} of {len(value)} entries: no model has so many modules; give {MOST_NAMES}")
    for other, names in given[1:]:
        if names != value:
            raise ConfigError(f"{k.prefix}{key} with {other}: two names of one thing disagree; give only one")
    return tuple(value)


def _group(k: Keys, default=None) -> int:
    """Input columns that share a scale; 0, written -1, for all of them."""
    if k.raw.get("group_size") == -1 and type(k.raw["group_size"]) is int:
        k.used.add("group_size")
        return 0
    return k.int("group_size") if default is None else k.int("group_size", default=default)


def _bits(k: Keys, name: str, allowed: tuple[int, ...], default=None) -> int:
    value = k.int(name) if default is None else k.int(name, default=default)
    if value not in allowed:
        raise ConfigError(f"{k.prefix}{name}={value}: not understood; use one of {', '.join(map(str, allowed))}")
    return value


def _fp8(k: Keys) -> dict:
    """8-bit floats with an fp32 scale a block of `weight_block_size` or a matrix. Source: arXiv:2412.19437."""
    static = k.choice("activation_scheme", {"static": True, "dynamic": False}, default="dynamic")
    k.choice("fmt", {"e4m3": None, "float8_e4m3fn": None}, default="e4m3")
    k.choice("scale_fmt", {"ue8m0": None, "float32": None}, default="float32")  # of the values; stored as fp32
    k.bool("dequantize", default=False)
    k.used.add("kv_cache_scheme")
    block = k.raw.get("weight_block_size")
    k.used.add("weight_block_size")
    if block is not None and (
        type(block) is not list or len(block) != 2 or any(type(n) is not int or not 0 < n < 2**20 for n in block)
    ):
        raise ConfigError(f"{k.prefix}weight_block_size={shown(block)}: must be two sizes; give [128, 128] or null")
    scheme = Scheme(8, tuple(block) if block else (0, 0), matrix_bytes=4 * static)
    excluded = _names(k, "modules_to_not_convert", "ignored_layers")
    unknown = None
    if k.given("quant_algo"):
        k.used |= MODELOPT_KEYS
        unknown = "quant_algo beside quant_method=fp8: two formats in one file"
    return {"scheme": scheme, "excluded": ("lm_head",) if excluded is None else excluded, "unknown": unknown}


def _mxfp4(k: Keys) -> dict:
    """4-bit floats of the routed experts, with an 8-bit exponent for each 32 inputs."""
    k.bool("dequantize", default=False)
    excluded = _names(k, "modules_to_not_convert")
    return {"scheme": MXFP4, "excluded": excluded or (), "where": "experts"}


def _gptq(k: Keys) -> dict:
    """Integers packed along the inputs, with an fp16 scale and a packed zero a group. Source: arXiv:2210.17323."""
    bits, group = _bits(k, "bits", (2, 3, 4, 8)), _group(k)
    for name in ("desc_act", "sym", "static_groups", "true_sequential"):
        k.bool(name, default=True)
    head = k.bool("lm_head", default=False)
    layout = k.choice("checkpoint_format", {n: n for n in ("gptq", "gptq_v2", "marlin", "bitblas")}, default="gptq")
    k.used |= GPTQ_TOOL
    only = k.raw.get("modules_in_block_to_quantize")
    k.used.add("modules_in_block_to_quantize")
    scheme = Scheme(bits, (1, group), 16, zeros=True, word=32, packed="in", column_bytes=4)
    rules = ()
    if only is not None:
        flat = [n for part in only for n in (part if type(part) is list else [part])] if type(only) is list else [None]
        if not all(type(name) is str and len(name) <= 200 for name in flat):
            raise ConfigError(f"{k.prefix}modules_in_block_to_quantize={shown(only)}: must be a list of names; give one")
        rules = tuple((name, scheme) for name in dict.fromkeys(flat))
    return {
        "scheme": None if rules else scheme,
        "rules": rules,
        "excluded": () if head else ("lm_head",),
        "where": "linear" if head else "blocks",
        "unknown": None if layout.startswith("gptq") else f"checkpoint_format={layout}: its layout is not described",
    }


def _awq(k: Keys) -> dict:
    """4-bit integers packed along the outputs, with an fp16 scale and a packed zero a group. Source: arXiv:2306.00978."""
    bits, group = _bits(k, "bits", (4,), 4), _group(k, 128)
    k.bool("zero_point", default=True)
    layout = k.choice("version", {n: n for n in ("gemm", "GEMM", "gemv", "GEMV", "gemv_fast", "marlin")}, default="gemm")
    k.choice("backend", {"autoawq": None, "llm-awq": None}, default="autoawq")
    k.used |= {"do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"}
    excluded = _names(k, "modules_to_not_convert")
    return {
        "scheme": Scheme(bits, (1, group), 16, zeros=True, word=32, packed="out"),
        "excluded": excluded or (),
        "where": "blocks",
        "unknown": None if layout.lower() == "gemm" else f"version={layout}: its layout is not described",
    }


def _bitsandbytes(k: Keys) -> dict:
    """nf4 or fp4 in blocks of 64, or int8 by row. Sources: arXiv:2305.14314, arXiv:2208.07339.

    The few bytes of JSON in which a 4-bit matrix keeps its shape and offset are not counted.
    """
    four, eight = (k.bool(a, default=k.bool(b, default=False)) for a, b in BNB_BITS)
    if four == eight:
        raise ConfigError(f"{k.prefix}load_in_4bit={four} with load_in_8bit={eight}: one of them; set one to true")
    k.choice("bnb_4bit_quant_type", {"nf4": None, "fp4": None}, default="fp4")
    double = k.bool("bnb_4bit_use_double_quant", default=False)
    storage = k.str("bnb_4bit_quant_storage", default="uint8").removeprefix("torch.")
    k.used |= {"bnb_4bit_compute_dtype", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"}
    k.used |= {"llm_int8_threshold"}
    words = {"uint8": 8, "int8": 8, "float16": 16, "bfloat16": 16, "float32": 32}
    if storage not in words:
        raise ConfigError(f"{k.prefix}bnb_4bit_quant_storage={shown(storage)}: not understood; use {', '.join(words)}")
    excluded = _names(k, "llm_int8_skip_modules")
    table = 16 * 4 + (256 * 4 if double else 0)
    nf4 = Scheme(
        4, scale_bits=8 if double else 32, word=words[storage], packed="flat", flat=64, matrix_bytes=table,
        nested=256 if double else 0,
    )  # fmt: skip
    int8 = Scheme(8, (1, 0), 32, matrix_bytes=1)  # one byte says in which order the rows lie
    return {"scheme": nf4 if four else int8, "excluded": ("lm_head",) if excluded is None else excluded}


def _compressed(k: Keys) -> dict:
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
        targets = _names(group, "targets") or ("Linear",)
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
        "excluded": _names(k, "ignore") or (),
        "unknown": None if layout in KNOWN_LAYOUTS else f"format={layout}: its layout is not described",
    }


def _weights(group: Keys, layout: str, inputs: Keys | None) -> Scheme | None:
    w = group.nested("weights")
    if w is None:
        return None
    bits, kind = _bits(w, "num_bits", (2, 3, 4, 8)), w.choice("type", {"int": "int", "float": "float"}, default="int")
    strategy = w.choice("strategy", {n: n for n in (*STRATEGIES, "group")}, default="tensor")
    symmetric = w.bool("symmetric", default=True)
    structure, order = w.raw.get("block_structure"), w.raw.get("actorder")
    w.used |= {"block_structure", "actorder", "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
    size = _group(w, 0) if w.raw.get("group_size") is not None else 0
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


def _modelopt(k: Keys) -> dict:
    """Model Optimizer: one algorithm for all but the excluded modules, or an algorithm a module."""
    algo = k.choice("quant_algo", {name: name for name in (*ALGORITHMS, "MIXED_PRECISION")})
    k.used |= MODELOPT_KEYS
    excluded = _names(k, "exclude_modules", "ignore")
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


MXFP4 = Scheme(4, (1, 32), 8)
ALGORITHMS = {
    "FP8": Scheme(8, matrix_bytes=4),  # and the scale of the input
    "FP8_PB_WO": Scheme(8, (128, 128)),
    "NVFP4": Scheme(4, (1, 16), 8, matrix_bytes=8),  # the scale of the scales, and the scale of the input
    "W4A16_NVFP4": Scheme(4, (1, 16), 8, matrix_bytes=4),
    "MXFP8": Scheme(8, (1, 32), 8),
}
METHODS = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
BNB_BITS = (("load_in_4bit", "_load_in_4bit"), ("load_in_8bit", "_load_in_8bit"))
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
# How the tool worked, and how the weights are run.
GPTQ_TOOL = frozenset({
    "damp_percent", "damp_auto_increment", "model_name_or_path", "model_file_base_name", "meta", "pack_dtype",
    "dataset", "tokenizer", "use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "batch_size", "pad_token_id",
    "module_name_preceding_first_block", "use_exllama", "disable_exllama", "exllama_config", "max_input_length",
    "cache_block_outputs", "backend", "act_group_aware", "mse", "is_marlin_format", "format", "cache_examples_on_gpu",
})  # fmt: skip
COMPRESSED_TOOL = frozenset({
    "quantization_status", "global_compression_ratio", "kv_cache_scheme", "sparsity_config", "transform_config",
    "version", "run_compressed",
})  # fmt: skip
