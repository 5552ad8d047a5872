"""How a checkpoint stores its matrices, read strictly from `quantization_config`. Parameters do not depend on it.

A method stores some matrices (`Scheme`) and leaves the rest as they are. `archcalc.quantization.checkpoint` counts it.
Sources: the Hugging Face quantization configs; the layouts of the files that AutoGPTQ, AutoAWQ, bitsandbytes,
compressed-tensors and NVIDIA's Model Optimizer write; OCP microscaling formats v1.0 (mxfp4, mxfp8).
"""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import ConfigError
from archcalc.keys import Keys, shown
from archcalc.quantization.groups import MODELOPT_KEYS, compressed_tensors, modelopt
from archcalc.quantization.schemes import MXFP4, Scheme, group_size, names, one_of_bits


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
    q, mlx = k.nested("quantization_config"), k.nested("quantization")
    if mlx is not None:
        return _mlx(mlx)
    if q is None:
        return None
    method = q.str("quant_method", default="modelopt" if "quant_algo" in q.raw else None)
    if method is None:
        method = "bitsandbytes" if q.given("load_in_4bit") or q.given("load_in_8bit") else q.str("quant_method")
    if method in ELSEWHERE:
        return Quantization(method, None, unknown=f"quant_method={method}: its layout is not described")
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


def _mlx(k: Keys) -> Quantization:
    """What MLX writes under `quantization`, and again under `quantization_config`; embeddings are packed too."""
    one_of_bits(k, "bits", (2, 3, 4, 5, 6, 8))
    group_size(k)
    k.choice("mode", dict.fromkeys(("affine", "mxfp4", "mxfp8", "nvfp4")), default="affine")
    k.used |= {"quant_method", "linear_class", "quantize_activations"}
    k.used |= {name for name, value in k.raw.items() if type(value) in (dict, bool)}  # of one module
    k.finish()
    return Quantization("mlx", None, unknown="quantization: how MLX lays out its files is not described")


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
    excluded = names(k, "modules_to_not_convert", "ignored_layers")
    unknown = None
    if k.given("quant_algo"):
        k.used |= MODELOPT_KEYS
        unknown = "quant_algo beside quant_method=fp8: two formats in one file"
    return {"scheme": scheme, "excluded": ("lm_head",) if excluded is None else excluded, "unknown": unknown}


def _mxfp4(k: Keys) -> dict:
    """4-bit floats of the routed experts, with an 8-bit exponent for each 32 inputs."""
    k.bool("dequantize", default=False)
    excluded = names(k, "modules_to_not_convert")
    return {"scheme": MXFP4, "excluded": excluded or (), "where": "experts"}


def _gptq(k: Keys) -> dict:
    """Integers packed along the inputs, with an fp16 scale and a packed zero a group. Source: arXiv:2210.17323."""
    bits, group = one_of_bits(k, "bits", (2, 3, 4, 8)), group_size(k)
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
            raise ConfigError(
                f"{k.prefix}modules_in_block_to_quantize={shown(only)}: must be a list of names; give one"
            )
        rules = tuple((name, scheme) for name in dict.fromkeys(flat))
    return {
        "scheme": None if rules else scheme,
        "rules": rules,
        "excluded": () if head else ("lm_head",),
        "where": "linear" if head else "blocks",
        "unknown": None if layout.startswith("gptq") else f"checkpoint_format={layout}: its layout is not described",
    }


def _awq(k: Keys) -> dict:
    """4-bit integers packed along the outputs, with an fp16 scale and a packed zero a group. arXiv:2306.00978."""
    bits, group = one_of_bits(k, "bits", (4,), 4), group_size(k, 128)
    k.bool("zero_point", default=True)
    layout = k.choice(
        "version", {n: n for n in ("gemm", "GEMM", "gemv", "GEMV", "gemv_fast", "marlin")}, default="gemm"
    )
    k.choice("backend", {"autoawq": None, "llm-awq": None}, default="autoawq")
    k.used |= {"do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"}
    excluded = names(k, "modules_to_not_convert")
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
    excluded = names(k, "llm_int8_skip_modules")
    table = 16 * 4 + (256 * 4 if double else 0)
    nf4 = Scheme(
        4, scale_bits=8 if double else 32, word=words[storage], packed="flat", flat=64, matrix_bytes=table,
        nested=256 if double else 0,
    )  # fmt: skip
    int8 = Scheme(8, (1, 0), 32, matrix_bytes=1)  # one byte says in which order the rows lie
    return {"scheme": nf4 if four else int8, "excluded": ("lm_head",) if excluded is None else excluded}


METHODS = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
}
# Methods whose files are not described here. None of them gives a layer more parameters.
ELSEWHERE = frozenset({
    "aqlm", "auto-round", "eetq", "exl2", "exl3", "fbgemm_fp8", "fp_quant", "higgs", "hqq", "intel/auto-round",
    "quanto", "quark", "sinq", "spqr", "torchao", "vptq",
})  # fmt: skip
BNB_BITS = (("load_in_4bit", "_load_in_4bit"), ("load_in_8bit", "_load_in_8bit"))
# How the tool worked, and how the weights are run.
GPTQ_TOOL = frozenset({
    "damp_percent", "damp_auto_increment", "model_name_or_path", "model_file_base_name", "meta", "pack_dtype",
    "dataset", "tokenizer", "use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "batch_size", "pad_token_id",
    "module_name_preceding_first_block", "use_exllama", "disable_exllama", "exllama_config", "max_input_length",
    "cache_block_outputs", "backend", "act_group_aware", "mse", "is_marlin_format", "format", "cache_examples_on_gpu",
})  # fmt: skip
