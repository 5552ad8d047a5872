"""What the calculator says of a model, in the words of the reference model: names, shapes, FLOPs."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from archcalc.config import ModelConfig, expanded
from archcalc.cost import Line, Pass, bound, total
from archcalc.ops import size


def layer_indices(config: ModelConfig, line: Line) -> list[int]:
    """The layers that a line stands for."""
    if not line.group.block:
        return []
    encoder = config.decoder is None or line.name.startswith("encoder.")
    stack = config.encoder if encoder else config.decoder
    kinds = list(dict.fromkeys(stack.layers))
    number = line.group.block.rsplit(" ", 1)[-1]
    kind = kinds[int(number) - 1 if number.isdigit() else 0]
    return [index for index, block in enumerate(stack.layers) if block == kind]


# What an op owns where that is not a matrix and its bias: names beside the op's own ones, in the order of its weights.
OWNED = {
    "sinks": ("self_attn.sinks",),
    "write": ("mixer.dt_bias", "mixer.A_log", "mixer.D"),
}
# The axes of a tensor that is no matrix [out, in], by the last part of its name.
AXES = {"relative_attention_bias": "bN", "conv1d": "xk", "conv1": "Dzk", "conv2": "eDk"}


def shape(line: Line, axes: str) -> tuple[int, ...]:
    """The shape of a weight: a matrix is [out, in], each side one product; an embedding is [rows, D]."""
    leaf = line.name.rsplit(".", 1)[-1]
    if len(axes) > 1 and leaf in AXES:
        return tuple(line.dims[a] for a in AXES[leaf])
    if line.op.gather in ("V", "M", "t"):
        return tuple(line.dims[a] for a in axes)
    inputs = "".join(t.axes for t in line.op.inputs if t.role in ("activation", "cache", "chip"))
    given = "".join(a for a in axes if a in inputs)
    made = "".join(a for a in axes if a not in inputs)
    if not given or not made:
        return (size(axes, line.dims),)
    return (size(made, line.dims), size(given, line.dims))


def owned(line: Line) -> dict[str, str]:
    """The parameters of an op by name, with their axes; `*` is a layer."""
    place, leaf = line.name.rpartition(".")[0], line.name.rpartition(".")[2]
    axes = [tensor.axes for tensor in line.op.weights]
    if leaf in OWNED:
        place = place.rpartition(".")[0]
        return {f"{place}.{name}": one for name, one in zip(OWNED[leaf], axes, strict=False)}
    tied = any(tensor.role == "tied" for tensor in line.op.inputs)
    suffixes = ("bias",) if tied else ("weight", "bias")  # of a tied matrix another op is the owner
    return {f"{line.name}.{suffix}": one for suffix, one in zip(suffixes, axes, strict=False)}


def expected_parameters(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, as the op list has them."""
    config = expanded(config)  # latent attention has its matrices by head in this form
    found: dict[str, tuple[int, ...]] = {}
    for line in (line for part in bound(config) for line in part.lines):
        for pattern, axes in owned(line).items():
            names = [pattern]
            if line.group.block:
                names = [pattern.replace("*", str(index)) for index in layer_indices(config, line)]
            if line.op.gather == "E":  # each expert is a module of its own
                axes = axes.replace("E", "")
                names = [n.replace("experts.", f"experts.{e}.") for n in names for e in range(line.dims["E"])]
            for name in names:
                assert name not in found, f"{name} is owned twice"
                found[name] = shape(line, axes)
    return found


def actual_parameters(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Every parameter of the reference model, a tied one once, under the name of its owner."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def differences(expected: dict, actual: dict) -> list[str]:
    """What one side has and the other has not, in both directions; empty where they agree."""
    found = [f"{name}: the calculator has {expected[name]}, the model nothing" for name in expected.keys() - actual]
    found += [f"{name}: the model has {actual[name]}, the calculator nothing" for name in actual.keys() - expected]
    for name in expected.keys() & actual.keys():
        if expected[name] != actual[name]:
            found.append(f"{name}: the calculator has {expected[name]}, the model {actual[name]}")
    return sorted(found)


def counted(run, *arguments, **keywords) -> tuple[int, object]:
    """(FLOPs that torch counts, result) of a call."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = run(*arguments, **keywords)
    return counter.get_total_flops(), result


def predicted(config: ModelConfig, once: bool = False, **dims: int) -> int:
    """FLOPs of a pass, every (query, key) pair counted: what an eager model multiplies."""
    return total(Pass("", {"R": dims.get("T", 1)} | dims, bound(config)[0 if once else 1]), dense=True).flops
