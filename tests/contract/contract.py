"""What the calculator says of a model, in the words of the reference model: names, shapes, FLOPs."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from archcalc.config import ModelConfig
from archcalc.cost import Line, Pass, bound, total
from archcalc.ops import size


def layer_indices(config: ModelConfig, line: Line) -> list[int]:
    """The layers that a line stands for."""
    if not line.group.block:
        return []
    stack = config.encoder if config.encoder and line.name.startswith("encoder.") else config.decoder
    kinds = list(dict.fromkeys(stack.layers))
    number = line.group.block.rsplit(" ", 1)[-1]
    kind = kinds[int(number) - 1 if number.isdigit() else 0]
    return [index for index, block in enumerate(stack.layers) if block == kind]


def shape(op_inputs: str, axes: str, dims) -> tuple[int, ...]:
    """The shape of a weight: a matrix is [out, in], each side one product; an embedding is [rows, D]."""
    given = "".join(a for a in axes if a in op_inputs)
    made = "".join(a for a in axes if a not in op_inputs)
    if not given or not made:
        return (size(axes, dims),)
    return (size(made, dims), size(given, dims))


def expected_parameters(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, as the op list has them."""
    found: dict[str, tuple[int, ...]] = {}
    for line in (line for part in bound(config) for line in part.lines):
        given = "".join(t.axes for t in line.op.inputs if t.role == "activation")
        for tensor, suffix in zip(line.op.weights, ("weight", "bias"), strict=False):
            axes, names = tensor.axes, [line.name]
            if line.group.block:
                names = [line.name.replace("*", str(index)) for index in layer_indices(config, line)]
            if line.op.gather == "E":  # each expert is a module of its own
                axes = axes.replace("E", "")
                names = [n.replace("experts.", f"experts.{e}.") for n in names for e in range(line.dims["E"])]
            sizes = shape(given, axes, line.dims)
            if line.op.gather in ("V", "M"):
                sizes = tuple(line.dims[a] for a in axes)
            for name in names:
                assert f"{name}.{suffix}" not in found, f"{name}.{suffix} is owned twice"
                found[f"{name}.{suffix}"] = sizes
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
