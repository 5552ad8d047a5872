"""`--target onnxruntime`: matrices that multiply the same input, as one matrix.

Each product of a step wakes all threads and waits for the slowest; one for queries, keys and values, and one for gate
and up, wait less often. A pack holds the rows of its weights one below the other.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import helper
from torch import nn

from export.fused import ATTENTION
from export.onnx_from_torch import Functions, Tracer
from export.quantize import UNQUANTIZED, matrices
from export.tracing import Function, pruned, remade


def packed(functions: Functions, tracer: Tracer) -> Functions:
    """The same functions, with one product for those of the same input."""
    blocks = {kind: _packed(f, tracer.layer(kind)) for kind, f in functions.blocks.items()}
    experts = {mixture: _packed(f, tracer.first_expert(mixture)) for mixture, f in functions.experts.items()}
    return replace(functions, blocks=blocks, experts=experts)


def pack_name(weights: list[str]) -> str:
    """One name for several weights, that `models.names.rules.alternatives` takes apart."""
    return f"({'|'.join(weights)})"


def _packed(function: Function, module: nn.Module) -> Function:
    """Args: module: what it is of, for the number of rows of its weights."""
    by_input: dict[str, list[str]] = {}
    found = matrices(function)
    for weight, (_, product) in found.items():
        if not any(word in weight for word in UNQUANTIZED):
            by_input.setdefault(product.input[0], []).append(weight)
    groups = {pack_name(weights): weights for weights in by_input.values() if len(weights) > 1}
    made = {
        id(_first(function, [found[weight][1] for weight in weights])): _product(name, weights, found, module)
        for name, weights in groups.items()
    }
    gone = {id(node) for weights in groups.values() for weight in weights for node in found[weight]}
    nodes = [one for node in function.proto.node for one in made.get(id(node), () if id(node) in gone else (node,))]
    first = {weights[0]: name for name, weights in groups.items()}
    inner = {weight for weights in groups.values() for weight in weights[1:]}
    renamed = lambda names: [first.get(name, name) for name in names if name not in inner]  # noqa: E731
    made = remade(function, nodes, inputs=renamed(function.proto.input), weights=renamed(function.weights))
    return _unsplit(made)


def _first(function: Function, products: list[onnx.NodeProto]) -> onnx.NodeProto:
    """The one that comes first in the function, which need not be the one of its first weight."""
    return next(node for node in function.proto.node if any(node is product for product in products))


def _product(name: str, weights: list[str], found: dict, module: nn.Module) -> list[onnx.NodeProto]:
    """One product by all of these weights, and its split into theirs."""
    _, product = found[weights[0]]
    outputs = [found[weight][1].output[0] for weight in weights]
    rows = [len(module.get_parameter(weight)) for weight in weights]
    return [
        helper.make_node("Transpose", [name], [f"{name}.transposed"], perm=[1, 0]),
        helper.make_node("MatMul", [product.input[0], f"{name}.transposed"], [f"{name}.products"], name=product.name),
        helper.make_node("Constant", [], [f"{name}.rows"], value_ints=rows),
        helper.make_node("Split", [f"{name}.products", f"{name}.rows"], outputs, axis=-1),
    ]


def _unsplit(function: Function) -> Function:
    """The function whose fused attention splits queries, keys and values itself, where they are all of a product."""
    nodes = list(function.proto.node)
    splits = {tuple(node.output): node for node in nodes if node.op_type == "Split"}
    for attention in (node for node in nodes if node.op_type == ATTENTION):
        if split := splits.get(tuple(attention.input[:3])):
            attention.input[:3] = [split.input[0], "", ""]
    return pruned(remade(function, nodes), list(function.proto.output))
