"""Counts read from an ONNX graph alone: parameters and FLOPs, the measured side of the exact comparisons."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from math import prod
from pathlib import Path

import onnx
import onnx.inliner
from onnx import TensorProto, helper

from export.files import ExportError
from export.fused import ATTENTION, SUMMED_NORM
from export.mixture import EXPERTS
from export.tracing import DOMAIN

NO_PARAMETERS = (".scale", ".correction_bias")
PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "Attention", ATTENTION, "Conv")
INTEGERS = re.compile(r"\.int[48]$")  # the end of the name of a weight's integers


def count_parameters(*paths: Path, beside: Collection[str] = ()) -> int:
    """Elements of the weights that these graphs have in the data file: of those stored as integers too, or in several
    graphs, once each, and of no scale. Args: beside: names of what is stored and no parameter."""
    graphs = [onnx.load(path, load_external_data=False).graph for path in paths]
    stored = [t for graph in graphs for t in graph.initializer if t.data_location == TensorProto.EXTERNAL]
    external = {t.name: prod(t.dims) for t in stored}
    kept = {name: n for name, n in external.items() if not name.endswith(NO_PARAMETERS) and name not in beside}
    weights = {INTEGERS.sub("", name): n for name, n in kept.items()}
    return sum(weights.values())


def count_flops(path: Path, sizes: dict[str, int]) -> int:
    """FLOPs of the matrix products of one pass, a multiply-add being 2; masked pairs are multiplied too.

    Which expert a token goes to changes none: each choice is one expert's work. Rows that fill up an expert's block
    are not counted.

    Args:
        sizes: a number for each symbolic axis of the graph, e.g. {"batch": 1, "tokens": 16, ...}, and `keys`, those
            that are there for the fused attention of ONNX Runtime; by default as many as the cache has slots.
    Raises: ExportError for a product whose shape cannot be inferred, or that runs an unknown number of times.
    """
    model = onnx.load(path, load_external_data=False)
    for function in model.functions:
        if function.name.startswith(EXPERTS):
            _compute_each_choice(function)
    model = onnx.inliner.inline_local_functions(model)
    for value in model.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_value = sizes[axis.dim_param]  # clears dim_param: they are one field
    del model.graph.value_info[:]
    _declare_fused(model.graph, sizes.get("keys"))
    return _model_flops(model)


def _declare_fused(graph: onnx.GraphProto, keys: int | None) -> None:
    """Say what inference does not know of fused operators: results' shapes, and how many keys attention multiplies."""
    given = {value.name: value.type.tensor_type for value in graph.input}
    inputs = {name: [axis.dim_value for axis in kind.shape.dim] for name, kind in given.items()}
    widths = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    kind = next((kind.elem_type for name, kind in given.items() if name.startswith("past")), TensorProto.FLOAT)
    for node in graph.node:
        if node.op_type == ATTENTION:
            _, _, capacity, head_dim = inputs[node.input[3]]
            heads = next(attribute.i for attribute in node.attribute if attribute.name == "num_heads")
            node.attribute.append(helper.make_attribute("keys", keys or capacity))
            width, outputs = heads * head_dim, node.output[:1]
        elif node.op_type == SUMMED_NORM:
            width, outputs = widths[node.input[2]], [node.output[0], node.output[3]]
        else:
            continue
        shape = [*inputs["input_ids"], width]
        graph.value_info.extend(helper.make_tensor_value_info(output, kind, shape) for output in outputs)


def _compute_each_choice(function: onnx.FunctionProto) -> None:
    """Replace the body of `Experts` by one expert's work on each token, as often as the token chooses; in place."""
    call = onnx.NodeProto()
    call.CopyFrom(next(node for node in _every(function.node) if node.domain == DOMAIN))
    call.input[0], call.output[0] = "each_tAD", "made_tAD"
    x, shares = function.input[:2]
    constants = {"after_tokens": 1, "last": -1}
    nodes = [
        *(node for node in function.node if node.op_type == "Identity"),  # weights that are passed on
        *(helper.make_node("Constant", [], [name], value_ints=[value]) for name, value in constants.items()),
        helper.make_node("Unsqueeze", [x, "after_tokens"], ["x_t1D"]),
        helper.make_node("Unsqueeze", [shares, "last"], ["shares_tA1"]),
        helper.make_node("Mul", ["x_t1D", "shares_tA1"], ["each_tAD"]),
        call,
        helper.make_node("ReduceSum", ["made_tAD", "after_tokens"], list(function.output), keepdims=0),
    ]
    del function.node[:]
    function.node.extend(nodes)


def _every(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _every(attribute.g.node)


def _model_flops(model: onnx.ModelProto) -> int:
    """FLOPs of the products of a graph whose inputs have known shapes."""
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    infer = functools.partial(onnx.shape_inference.infer_shapes, data_prop=True, strict_mode=True)
    graph = infer(_with_numbers_as_shapes(infer(model))).graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        axes = value.type.tensor_type.shape.dim
        shapes[value.name] = [axis.dim_value if axis.HasField("dim_value") else 0 for axis in axes]
    scans = sum(_scan_flops(node, shapes, graph, model.opset_import) for node in graph.node if node.op_type == "Scan")
    return scans + sum(_node_flops(node, shapes) for node in graph.node if node.op_type != "Scan")


def _with_numbers_as_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph, in place, with Unsqueeze for each Reshape of a number: inference knows what comes out of that."""
    numbers = {value.name for value in model.graph.value_info if not value.type.tensor_type.shape.dim}
    model.graph.node.insert(0, helper.make_node("Constant", [], ["only_axis"], value_ints=[0]))
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[0] in numbers:
            node.CopyFrom(helper.make_node("Unsqueeze", [node.input[0], "only_axis"], list(node.output)))
    return model


def _node_flops(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    if any(inner.op_type in PRODUCTS for inner in _every([node]) if inner is not node):
        raise ExportError(f"{node.name or node.op_type}: how often it runs is not known; cannot count its FLOPs")
    if node.op_type not in PRODUCTS:
        return 0
    read = node.input[:1] if node.op_type == ATTENTION else node.input[:3]
    known = [shapes.get(name, [0]) for name in (*read, node.output[0]) if name]
    if not all(all(shape) for shape in known):
        raise ExportError(f"{node.name or node.op_type}: shapes {known} are not all known; cannot count its FLOPs")
    first = shapes[node.input[0]]
    if node.op_type == ATTENTION:  # all heads of a query are one row
        keys = next(attribute.i for attribute in node.attribute if attribute.name == "keys")
        return 4 * prod(shapes[node.output[0]]) * keys
    if node.op_type == "Attention":  # [B, N, T, H] by [B, K, S, H], twice
        batch, heads, tokens, head_dim = first
        keys, values = shapes[node.input[1]], shapes[node.input[2]]
        return 2 * batch * heads * tokens * keys[2] * (head_dim + values[3])
    if node.op_type == "Conv":  # a weight is [out, in of its group, taps]
        return 2 * prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * prod(shapes[node.output[0]]) * (first[0] if transposed else first[-1])


def _scan_flops(node: onnx.NodeProto, shapes: dict[str, list[int]], graph: onnx.GraphProto, opsets) -> int:
    """Those of one step, times the steps, which are the first axis of what is scanned."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    body, states = given["body"], len(node.input) - given["num_scan_inputs"]
    if "scan_input_axes" in given or not shapes[node.input[-1]]:
        raise ExportError(f"{node.name or node.op_type}: how often it runs is not known; cannot count its FLOPs")
    inputs = [
        helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shapes[name][index >= states :])
        for index, (value, name) in enumerate(zip(body.input, node.input, strict=True))
    ]
    constants = [other for other in graph.node if other.op_type == "Constant"]  # a step sees those around it
    step = helper.make_graph([*constants, *body.node], "step", inputs, list(body.output))
    return shapes[node.input[-1]][0] * _model_flops(helper.make_model(step, opset_imports=list(opsets)))
