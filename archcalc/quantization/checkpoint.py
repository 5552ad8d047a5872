"""Bytes of a quantized checkpoint: packed weights, their scales, and what stays as it is. Exact integers.

Our ops become the modules of a checkpoint by the table below: the parts of one projection are one matrix again
(`kv_a_proj.latent` and `.rope`, the keys' and the values' half of `kv_b_proj`). By part of speech, a matrix is a weight
that sums over an input axis and makes an output axis. Norms, convolutions, embeddings, biases, the router, weights that
mix residual streams and the weights of an indexer's heads are never packed; block-diagonal matrices are refused.
A name that a config excludes must fit a module of the model, or
one that the model has and this calculator does not count; otherwise the size is not derived.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from archcalc.blocks import kinds, stack_groups
from archcalc.config import ModelConfig, once_a_config
from archcalc.cost import Line, bound, buffers
from archcalc.errors import ConfigError
from archcalc.keys import shown
from archcalc.ops import size
from archcalc.quantization import Quantization, Scheme
from archcalc.quantization.module_names import ELSEWHERE, Names, canonical

# The end of an op's name -> that of the module in the checkpoint. A part after `_proj.` falls away.
JOINED = {"k_b_proj": "kv_b_proj", "v_b_proj": "kv_b_proj"}
QKV = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.qkv_proj")
UPS = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "mlp.gate_up_proj")
GATED_Q = {"self_attn.gate_proj": "self_attn.q_proj"}
LINEAR_ATTENTION = {
    "mixer.in_proj.q": "mixer.in_proj_qkv", "mixer.in_proj.k": "mixer.in_proj_qkv",
    "mixer.in_proj.v": "mixer.in_proj_qkv", "mixer.in_proj.z": "mixer.in_proj_z",
    "mixer.in_proj.b": "mixer.in_proj_b", "mixer.in_proj.a": "mixer.in_proj_a",
}  # fmt: skip
PAIRED = {part: f"mixer.in_proj_{'qkvz' if part[-1] in 'qkvz' else 'ba'}" for part in LINEAR_ATTENTION}
BESIDE = (("shared_expert", "mlp"), ("experts", "experts"))
# model_type -> the modules that its checkpoints store joined, beyond those.
FUSED = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neox", "bloom", "falcon", "mpt", "codegen", "persimmon", "dbrx"), QKV),
    **dict.fromkeys(("phi3", "modernbert"), QKV | UPS),
    "granitemoehybrid": UPS | {f"mlp.shared_expert.{m}_proj": "mlp.shared_expert.gate_up_proj" for m in ("gate", "up")},
    "olmo_hybrid": {f"mixer.in_proj.{part}": f"mixer.{part}_proj" for part in "qkvzba"},
    **dict.fromkeys(("glm", "glm4"), UPS),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), GATED_Q | LINEAR_ATTENTION),
    "qwen3_next": GATED_Q | PAIRED,
    "gemma4_text": {f"mlp.{part}.{m}_proj": f"{own}.{m}_proj" for part, own in BESIDE for m in ("gate", "up", "down")},
}


class Stored(NamedTuple):
    """Bytes of packed weights, of scales, and of what is not quantized; elements of the stored weights."""

    packed: int = 0
    scales: int = 0
    plain: int = 0
    elements: int = 0

    @property
    def bytes(self) -> int:
        return self.packed + self.scales + self.plain


class Checkpoint(NamedTuple):
    """`lines`: (module, how many of it, their bytes together) in the order of the ops; `total` of all."""

    lines: tuple[tuple[str, int, Stored], ...]
    total: Stored


class Matrix(NamedTuple):
    """A matrix of the checkpoint: `count` of `rows` outputs and `columns` inputs a layer, and elements beside it."""

    rows: int = 0
    columns: int = 0
    count: int = 1
    beside: int = 0
    packable: bool = False
    diagonal: bool = False


def checkpoint_bytes(config: ModelConfig) -> Checkpoint:
    """What the checkpoint of a quantized model takes on disk, without the header of its file.

    Raises:
        ConfigError: the config has no quantization_config, or one that does not say enough.
    """
    q = config.quantization
    if q is None:
        raise ConfigError(
            "quantization_config: missing; the weights are stored as `weight_bytes` of one precision says"
        )
    if q.unknown:
        raise ConfigError(f"quantization_config: {q.unknown}; the bytes of its file are not derived")
    if q.method == "bitsandbytes" and any(line.op.gather == "E" for part in bound(config) for line in part.lines):
        raise ConfigError(
            "quantization_config.quant_method=bitsandbytes: whether experts are packed is not said; omit it"
        )
    return _checkpoint(config)


def packed_elements(config: ModelConfig) -> int:
    """Elements of the tensors that hold weights, packed ones as they lie: no count of parameters."""
    return checkpoint_bytes(config).total.elements


def checkpoint_row(config: ModelConfig) -> dict | None:
    """The totals for a report, or why there are none; None for a model without quantization_config."""
    if config.quantization is None:
        return None
    try:
        total = checkpoint_bytes(config).total
    except ConfigError as error:
        return {"method": config.quantization.method, "not_derived": str(error)}
    names = {"packed": total.packed, "scales": total.scales, "unquantized": total.plain, "total": total.bytes}
    return {"method": config.quantization.method, **names, "packed_elements": total.elements}


@once_a_config
def _checkpoint(config: ModelConfig) -> Checkpoint:
    q, chosen = config.quantization, Chooser(config)
    lines: list[tuple[str, int, Stored]] = []
    for name, matrix, layers in _modules(config):
        found: dict[Scheme | None, int] = defaultdict(int)
        for layer in layers:
            found[chosen(name, layer) if matrix.packable else None] += 1
        if matrix.diagonal and set(found) != {None}:
            raise ConfigError(
                f"quantization_config: how {name}, block-diagonal, is packed is not said; bytes not derived"
            )
        lines += [(name, n * matrix.count, _stored(q, scheme, matrix, n)) for scheme, n in found.items()]
    chosen.finish()
    if owned := 4 * buffers(config):
        lines.append(("buffers", 1, Stored(plain=owned, elements=owned // 4)))
    return Checkpoint(tuple(lines), Stored(*map(sum, zip(*(stored for _, _, stored in lines), strict=True))))


def _stored(q: Quantization, scheme: Scheme | None, m: Matrix, layers: int) -> Stored:
    if scheme is None:
        elements = layers * (m.rows * m.columns * m.count + m.beside)
        return Stored(0, 0, elements * q.plain_bytes, elements)
    packed, scales, words = scheme.stored(m.rows, m.columns)
    repeated, beside = layers * m.count, layers * m.beside
    return Stored(repeated * packed, repeated * scales, beside * q.plain_bytes, repeated * words + beside)


def _modules(config: ModelConfig) -> list[tuple[str, Matrix, list]]:
    """(name, matrix, indices of its layers, or [None] outside of blocks) of every module with weights."""
    layers = _layers(config)
    fused = FUSED.get((config.keys or {}).get("model_type"), {})
    found: dict[tuple, Matrix] = {}
    for line in (line for part in bound(config) for line in part.lines if line.params):
        name = line.name.replace("*.", "")
        base = re.sub(r"^(encoder\.|decoder\.)?(layers\.)?", "", name)
        joined = fused.get(base) or re.sub(r"(_proj)\..*$", r"\1", base)
        head, _, tail = joined.rpartition(".")
        joined = f"{head}.{JOINED[tail]}" if tail in JOINED else joined
        name = name.removesuffix(base) + joined
        key, made = (name, line.group.block, line.group.count), _matrix(line)
        found[key] = _join(found[key], made) if key in found else made
    return [(name, matrix, layers.get(block) or [None]) for (name, block, _), matrix in found.items()]


def _layers(config: ModelConfig) -> dict[str, list[int]]:
    """The indices of the layers of each kind of block, by the name of the kind."""
    found: dict[str, list[int]] = {}
    for name, stack in config.stacks.items():
        labels = list(dict.fromkeys(g.block for g in stack_groups(config, name, stack) if g.block))
        of = dict(zip(kinds(stack.layers), labels, strict=True))
        by_id = {id(block): of[block] for block in {id(b): b for b in stack.layers}.values()}
        for index, block in enumerate(stack.layers):
            found.setdefault(by_id[id(block)], []).append(index)
    return found


def _matrix(line: Line) -> Matrix:
    """The matrix of an op, and what it owns beside it; an op without one owns `beside` only."""
    op, weights = line.op, line.op.weights
    first, inputs = weights[0].axes, "".join(t.axes for t in op.inputs if t.role not in ("weight", "buffer"))
    summed = "".join(a for a in first if a in inputs and a not in op.output.axes)
    made = "".join(a for a in first if a not in inputs and a in op.output.axes)
    if op.name.endswith(("k_b_proj", "v_b_proj")):
        summed, made = "J", first.replace("J", "")
    whole = sum(size(t.axes, line.dims) for t in weights)
    never = ("conv", "_hyper", "hyper_head", "embed_tokens")
    if not (summed and made) or any(word in op.name for word in never) or line.name.startswith(never):
        return Matrix(beside=whole)
    rows, columns = size(made, line.dims), size(summed, line.dims)
    count = size("".join(a for a in first if a not in summed + made), line.dims)
    packable = not op.name.endswith((".router", "indexer.weights_proj"))
    return Matrix(rows, columns, count, whole - rows * columns * count, packable, count > 1 and op.gather != "E")


def _join(one: Matrix, other: Matrix) -> Matrix:
    """Two parts of one projection, one above the other."""
    if (one.columns, one.count) != (other.columns, other.count):
        return Matrix(0, 0, 1, sum(m.rows * m.columns * m.count + m.beside for m in (one, other)))
    return one._replace(rows=one.rows + other.rows, beside=one.beside + other.beside)


class Chooser:
    """Which scheme a module of a layer has, by the names that the config gives."""

    def __init__(self, config: ModelConfig):
        q = self.q = config.quantization
        self.depth = max(len(stack.layers) for stack in config.stacks.values())
        by_scheme: dict[Scheme, list[str]] = {}
        said: dict[str, Scheme] = {}
        for name, scheme in q.rules:
            if said.setdefault(canonical(name), scheme) != scheme:
                raise ConfigError(f"quantization_config: {shown(name)}: stored in two ways; bytes not derived")
            by_scheme.setdefault(scheme, []).append(name)
        self.excluded = Names(q.excluded)
        self.rules = {scheme: Names(tuple(names)) for scheme, names in by_scheme.items()}

    def __call__(self, name: str, layer: int | None) -> Scheme | None:
        own = name if layer is None else name.replace("layers.", f"layers.{layer}.", 1)
        for scheme, names in self.rules.items():
            if names.fit(own):
                return scheme
        left = self.excluded.fit(own)
        elsewhere = {"linear": False, "blocks": layer is None, "experts": ".experts." not in name}[self.q.where]
        return None if left or elsewhere else self.q.scheme

    def finish(self) -> None:
        """Refuse a name that said nothing."""
        for names in (self.excluded, *self.rules.values()):
            for pattern in names.unused():
                layer = re.search(r"(?:layers|h|blocks)\.(\d+)", pattern)
                if ELSEWHERE.search(pattern) or pattern.startswith("re:") or (layer and int(layer[1]) >= self.depth):
                    continue
                raise ConfigError(
                    f"quantization_config: {shown(pattern)} names no matrix of this model; bytes not derived"
                )
