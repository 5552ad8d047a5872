"""What one rank launches in a pass: the op list cut up over tensor, expert and pipeline parallelism, and fused.

Nothing here knows a model. An axis is sharded or not (`SHARDED`), and all follows from the axes of an op:
products of one input with one parent are one kernel (queries, keys and values; gate and up); a product that sums over
a sharded axis leaves a part of its result on each rank, so its module ends in an all-reduce; the two products of
attention and the softmax between them are one kernel; the experts' matrices are one.
Source: Shoeybi et al. 2019, arXiv:1909.08053 (tensor parallelism); Lepikhin et al. 2020, arXiv:2006.16668 (experts).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from archcalc.config import ModelConfig, expanded
from archcalc.cost import Line, bound
from archcalc.dims import Dims, Mask
from archcalc.errors import ConfigError
from archcalc.ops import RUNTIME, size

SHARDED = "NKFfVighw"  # heads, inner widths, the vocabulary; heads and inner widths of recurrent mixers
HIGHER = ("router", "lm_head", "shared_expert_gate")  # products that stay in the activations' format


@dataclass(frozen=True)
class Parallel:
    """How a model lies over devices.

    Args:
        tp: ranks that share each matrix. pp: groups of ranks that share the layers.
        ep: ranks among which whole experts are divided; the rest of `tp` cuts each expert's matrices.
        dp: groups of ranks that attend to different sequences, while experts are shared by all.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert's matrices."""
        return self.tp * self.dp // self.ep


class Product(NamedTuple):
    """[m, k] by [k, n] in `count` layers; `rows`: the axes whose product is m."""

    name: str
    count: int
    rows: str
    n: int
    k: int
    higher: bool


class Attend(NamedTuple):
    """Attention of `heads` query heads over `kv_heads`, keys of `width` and values of `value_width` channels."""

    name: str
    count: int
    heads: int
    kv_heads: int
    width: int
    value_width: int
    mask: Mask
    shared: bool  # one latent is keys and values of all heads


class Mixture(NamedTuple):
    """Routed experts on a rank: `experts` of `every`, `matrices` of hidden x inner each, `chosen` by a token."""

    name: str
    count: int
    hidden: int
    inner: int
    experts: int
    every: int
    chosen: int
    matrices: int


class Reduce(NamedTuple):
    """An all-reduce of `width` numbers a token over the ranks."""

    name: str
    count: int
    width: int


class Moved(NamedTuple):
    """Kernels that only move: norms, rotary positions, sums, activations, states. Elements a token, and a sequence."""

    name: str
    count: int
    per_token: float
    per_sequence: float
    kernels: int


class Kernels(NamedTuple):
    """All of a pass on one rank. `layers`: how many it runs."""

    products: list[Product]
    attention: list[Attend]
    mixtures: list[Mixture]
    reduces: list[Reduce]
    moved: list[Moved]
    layers: int


def check_parallel(config: ModelConfig, parallel: Parallel) -> None:
    """Raise ConfigError for a division that does not come out even, naming what would."""
    for line in bound(config)[1].lines:
        dims = line.dims
        for axis, key in (("N", "num_attention_heads"), ("F", "intermediate_size")):
            whole, ranks = dims.get(axis), parallel.expert_tp if axis == "F" and "E" in dims else parallel.tp
            if whole and whole % ranks:
                good = ", ".join(str(d) for d in range(1, 65) if whole % d == 0)
                raise ConfigError(f"tp={parallel.tp}: must divide {key}={whole}; use one of {good}")
        if (heads := dims.get("K")) and heads % parallel.tp and parallel.tp % heads:
            raise ConfigError(f"tp={parallel.tp}: neither divides num_key_value_heads={heads} nor is a multiple")
        if parallel.ep > 1:
            if not dims.get("E"):
                continue
            if dims["E"] % parallel.ep or (parallel.tp * parallel.dp) % parallel.ep:
                raise ConfigError(
                    f"ep={parallel.ep}: must divide num_local_experts={dims['E']} and tp x dp="
                    f"{parallel.tp * parallel.dp}; give a common divisor"
                )
    if parallel.ep > 1 and not any("E" in line.dims for line in bound(config)[1].lines):
        raise ConfigError(f"ep={parallel.ep}: {config.name} has no experts; leave it out")
    layers = sum(1 for stack in config.stacks.values() for _ in stack.layers)
    if parallel.pp > layers:
        raise ConfigError(f"pp={parallel.pp}: the model has {layers} layers; give at most that many")


def kernels(config: ModelConfig, parallel: Parallel, form: str = "absorbed") -> Kernels:
    """Kernels of a decoder pass of a rank; a pipeline's are those of all its stages, which a token goes through.

    Args:
        form: of latent attention: `absorbed` in a decode, `expanded` in a prefill.
    """
    memo = config.__dict__.setdefault("_archcalc.kernels", {})  # kept with the (frozen) config
    if (parallel, form) not in memo:
        memo[parallel, form] = _kernels(config if form == "absorbed" else expanded(config), parallel)
    return memo[parallel, form]


def _kernels(config: ModelConfig, parallel: Parallel) -> Kernels:
    found = Kernels([], [], [], [], [], sum(len(stack.layers) for stack in config.stacks.values()))
    for lines in _by_group(bound(config)[1].lines):
        dims = on_a_rank(lines[0].dims, parallel)
        _add_products(found, lines, dims, parallel)
        _add_attention(found, lines, dims)
        _add_mixture(found, lines, parallel)
        _add_moved(found, lines, dims)
    return found


def _by_group(lines: list[Line]) -> list[list[Line]]:
    """The lines of each kind of block, and of what stands outside of blocks."""
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(id(line.group), []).append(line)
    return list(found.values())


def on_a_rank(dims: Dims, parallel: Parallel) -> dict:
    """The axes of a layer as a rank has them; key and value heads are repeated where there are more ranks."""
    found = {axis: max(1, ceil(n / parallel.tp)) if axis in SHARDED else n for axis, n in dims.items()}
    if "K" in dims and "N" in dims:
        found["G"] = max(1, found["N"] // found["K"])
    return found


def _add_products(found: Kernels, lines: list[Line], dims: dict, parallel: Parallel) -> None:
    fused: dict[tuple[str, str, str], Product] = {}
    reduced: dict[str, Reduce] = {}
    for line in lines:
        op = line.op
        if op.mask or not op.multiplied or op.gather:
            continue
        matrices = op.matrices
        if not matrices:
            continue
        matrix = matrices[0].axes
        summed = "".join(axis for axis in matrix if axis not in op.output.axes)
        made = "".join(axis for axis in matrix if axis not in summed)
        rows = "".join(axis for axis in op.multiplied if axis in RUNTIME)
        parent = line.name.rpartition(".")[0]
        key = parent, op.inputs[0].axes, summed
        k = size(summed, dims)
        before = fused.get(key)
        name = f"{before.name}+{line.name.rpartition('.')[2]}" if before else line.name
        higher = any(word in line.name for word in HIGHER)
        if before and before.higher != higher:
            key, before, name = (line.name, "", ""), None, line.name
        fused[key] = Product(name, line.count, rows, size(made, dims) + (before.n if before else 0), k, higher)
        if parallel.tp > 1 and set(summed) & set(SHARDED):
            module = _module(line.name)
            reduced[module] = Reduce(f"{module}.all_reduce", line.count, size(made, dims))
    found.products.extend(fused.values())
    if parallel.tp > 1 and any(line.op.gather == "E" for line in lines):
        mixed = next(line for line in lines if line.op.gather == "E")
        module = _module(mixed.name)
        reduced[module] = Reduce(f"{module}.all_reduce", mixed.count, dims["D"])
    found.reduces.extend(reduced.values())


def _module(name: str) -> str:
    """`layers.*.self_attn` of `layers.*.self_attn.o_proj`."""
    words = name.split(".")
    return ".".join(words[: 3 if words[0] in ("layers", "encoder", "decoder") else 1])


def _add_attention(found: Kernels, lines: list[Line], dims: dict) -> None:
    """Attention, and the scores of an indexer, which has queries of its own and one key head."""
    masked = [line for line in lines if line.op.mask and line.op.multiplied]
    for line in masked:
        parent, _, last = line.name.rpartition(".")
        mask = line.op.mask.bound(line.dims)
        if last == "context":
            read = line.op.inputs[-1].axes
            shared = "K" not in read and "N" not in read
            width = sum(_width(one, dims) for one in masked if one.name.startswith(f"{parent}.scores"))
            kv_heads = 1 if shared else dims["K"] if "K" in read else dims["N"]
            sizes = dims["N"], kv_heads, width, _width(line, dims)
            found.attention.append(Attend(parent, line.count, *sizes, mask, shared))
        elif parent.endswith("indexer") and last == "scores":
            sizes = dims["I"], 1, _width(line, dims), 0
            found.attention.append(Attend(parent, line.count, *sizes, mask, True))


def _width(line: Line, dims: dict) -> int:
    """Channels of a masked product: what is summed over in scores, what is made in a context."""
    keys = line.op.inputs[-1].axes
    return size("".join(axis for axis in keys if axis not in "BSKN"), dims)


def _add_mixture(found: Kernels, lines: list[Line], parallel: Parallel) -> None:
    mixed = [line for line in lines if line.op.gather == "E"]
    if not mixed:
        return
    dims = mixed[0].dims
    inner = ceil(dims["F"] / parallel.expert_tp)
    hidden = dims.get("l") or dims["D"]
    matrices = sum(1 for line in mixed if line.op.multiplied)
    parent = mixed[0].name.rpartition(".")[0]
    experts = dims["E"] // parallel.ep
    found.mixtures.append(Mixture(parent, mixed[0].count, hidden, inner, experts, dims["E"], dims["A"], matrices))


def _add_moved(found: Kernels, lines: list[Line], dims: dict) -> None:
    """What is read and written between the products: norms and sums of `D`, states of recurrent layers.

    What an indexer's scores and a compressor's chunks are made into is left out: some hundredths of these.
    """
    tokens = sequences = 0.0
    count = 0
    for line in lines:
        op = line.op
        if op.mask or op.matrices or op.gather:
            continue
        count += 1
        for role, axes in (*op.inputs, op.output):
            if role in ("activation", "cache", "chip") and "T" in axes:
                tokens += size("".join(axis for axis in axes if axis not in RUNTIME), dims)
            elif role == "state":
                sequences += 2 * size("".join(axis for axis in axes if axis not in RUNTIME), dims)
    if count:
        found.moved.append(Moved(lines[0].group.path + "rest", lines[0].count, tokens, sequences, count))
