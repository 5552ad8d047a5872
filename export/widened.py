"""A bf16 graph for a runtime without bf16 arithmetic: everything is computed in fp32, and kept in bf16.

ONNX Runtime does the same of its own accord with fp16 on a CPU. What bf16 arithmetic rounds is not seen then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

NARROW, WIDE = TensorProto.BFLOAT16, TensorProto.FLOAT


def widened(path: Path) -> bytes:
    """The graph of a file with casts behind its bf16 inputs and weights and before its bf16 outputs, serialized."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    read = [tensor.name for tensor in graph.initializer if tensor.data_type == NARROW]
    read += [value.name for value in graph.input if value.type.tensor_type.elem_type == NARROW]
    made = [value.name for value in graph.output if value.type.tensor_type.elem_type == NARROW]
    wide = {name: f"{name}.fp32" for name in (*read, *made)}
    for node in [*graph.node, *(node for function in model.functions for node in function.node)]:
        _widen(node)
    for node in graph.node:
        node.input[:] = [wide.get(name, name) for name in node.input]
        node.output[:] = [wide.get(name, name) for name in node.output]
    before = [helper.make_node("Cast", [name], [wide[name]], to=WIDE) for name in read]
    after = [helper.make_node("Cast", [wide[name]], [name], to=NARROW) for name in made]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model.SerializeToString()


def _widen(node: onnx.NodeProto) -> None:
    """Its attributes that say bf16: the target of a Cast, a constant, and those of its subgraphs' nodes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == NARROW:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == NARROW:
            attribute.i = WIDE
        elif attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                _widen(inner)
