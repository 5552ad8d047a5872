"""Counts read from an ONNX graph alone: parameters and FLOPs, the measured side of the exact comparisons."""

from __future__ import annotations

from math import prod
from pathlib import Path

import onnx
import onnx.inliner
from onnx import TensorProto

from export.files import ExportError


def count_parameters(path: Path) -> int:
    """Elements of the initializers that lie in the data file."""
    graph = onnx.load(path, load_external_data=False).graph
    return sum(prod(t.dims) for t in graph.initializer if t.data_location == TensorProto.EXTERNAL)


def count_flops(path: Path, sizes: dict[str, int]) -> int:
    """FLOPs of the matrix products of one pass, a multiply-add being 2; masked pairs are multiplied too.

    Args:
        sizes: a number for each symbolic axis of the graph, e.g. {"batch": 1, "tokens": 16, ...}.
    Raises: ExportError for a product whose shape cannot be inferred.
    """
    model = onnx.inliner.inline_local_functions(onnx.load(path, load_external_data=False))
    for value in model.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_value = sizes[axis.dim_param]  # clears dim_param: they are one field
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True).graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        axes = value.type.tensor_type.shape.dim
        shapes[value.name] = [axis.dim_value if axis.HasField("dim_value") else 0 for axis in axes]
    return sum(_node_flops(node, shapes) for node in graph.node)


def _node_flops(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.op_type not in ("MatMul", "Gemm", "Attention"):
        return 0
    known = [shapes.get(name, [0]) for name in (*node.input[:3], node.output[0]) if name]
    if not all(all(shape) for shape in known):
        raise ExportError(f"{node.name or node.op_type}: shapes {known} are not all known; cannot count its FLOPs")
    first = shapes[node.input[0]]
    if node.op_type == "Attention":  # [B, N, T, H] by [B, K, S, H], twice
        batch, heads, tokens, head_dim = first
        keys, values = shapes[node.input[1]], shapes[node.input[2]]
        return 2 * batch * heads * tokens * keys[2] * (head_dim + values[3])
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * prod(shapes[node.output[0]]) * (first[0] if transposed else first[-1])
