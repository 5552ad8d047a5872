"""Weights as small integers: the numbers, and the functions that read them.

Grouped: `DequantizeLinear` along the summed axis, then `MatMul`. Both runtimes take that as one product with small
weights. Dynamic: `DynamicQuantizeLinear` of the activations, then `MatMulInteger`, a scale a column.
Source: ONNX operator specifications of DequantizeLinear (21), DynamicQuantizeLinear (11) and MatMulInteger (10).
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from export.precision import Quantization
from export.tracing import Function, remade

HEAD = "Head"
UNQUANTIZED = ("router",)  # which expert a token goes to changes with a rounding
INTEGERS = {4: (TensorProto.INT4, np.dtype(ml_dtypes.int4)), 8: (TensorProto.INT8, np.dtype(np.int8))}


@dataclass(frozen=True)
class Integers:
    """How one matrix [in, out] is stored: `bits` an entry, a scale for each `group` of a column; None: of a column."""

    bits: int
    group: int | None

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        return (-(-rows // self.group), columns) if self.group else (columns,)

    def nbytes(self, rows: int, columns: int) -> int:
        return -(-rows * columns * self.bits // 8)


def quantize(weight_IO: np.ndarray, form: Integers) -> tuple[np.ndarray, np.ndarray]:
    """(integers [I, O], scales [I / group, O] or [O] in fp32): the nearest multiples of a scale, its largest exact.

    The last group of a column may be shorter.
    """
    rows, columns = weight_IO.shape
    top = 2 ** (form.bits - 1) - 1
    group = form.group or rows
    groups = -(-rows // group)
    padded = np.zeros((groups * group, columns), np.float32)
    padded[:rows] = weight_IO
    padded_GgO = padded.reshape(groups, group, columns)
    scale_GO = np.abs(padded_GgO).max(axis=1) / top
    scale_GO[scale_GO == 0] = 1.0
    whole = np.rint(padded_GgO / scale_GO[:, None]).reshape(-1, columns)[:rows]
    return whole.astype(INTEGERS[form.bits][1]), scale_GO if form.group else scale_GO[0]


def dequantize(whole_IO: np.ndarray, scale: np.ndarray, form: Integers) -> np.ndarray:
    """The fp32 numbers [I, O] that they stand for."""
    factor = np.repeat(scale.astype(np.float32), form.group, axis=0)[: len(whole_IO)] if form.group else scale
    return whole_IO.astype(np.float32) * factor


def number_name(weight: str, form: Integers) -> str:
    """The tensor of a weight's integers. Another name than the weight's, which an embedding may read as it is."""
    return f"{weight}.int{form.bits}"


def scale_name(weight: str) -> str:
    return f"{weight}.scale"


def matrices(function: Function) -> dict[str, tuple[onnx.NodeProto, onnx.NodeProto]]:
    """The weights that the function only multiplies by, transposed: their Transpose and MatMul nodes."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in function.proto.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    found = {}
    for weight in function.weights:
        first = readers.get(weight, [])
        second = readers.get(first[0].output[0], []) if len(first) == 1 else []
        is_product = len(second) == 1 and (first[0].op_type, second[0].op_type) == ("Transpose", "MatMul")
        if is_product and second[0].input[1] == first[0].output[0]:
            found[weight] = first[0], second[0]
    return found


def quantized(function: Function, scheme: Quantization) -> tuple[Function, dict[str, Integers]]:
    """The function over integers instead of its matrices, which become [in, out]; and the form of each."""
    bits = scheme.head_bits if function.name == HEAD else scheme.bits
    form = Integers(bits, None if scheme.dynamic else scheme.group_size)
    chosen = {w: pair for w, pair in matrices(function).items() if not any(word in w for word in UNQUANTIZED)}
    replaced = {id(pair[1]): (weight, pair[1]) for weight, pair in chosen.items()}
    dropped = {id(pair[0]) for pair in chosen.values()}
    nodes = []
    for node in function.proto.node:
        if id(node) in replaced:
            make = _dynamic_product if scheme.dynamic else _grouped_product
            nodes += make(*replaced[id(node)], form)
        elif id(node) not in dropped:
            nodes.append(node)
    old = function.proto.input
    inputs = [one for i in old for one in ((number_name(i, form), scale_name(i)) if i in chosen else (i,))]
    weights = inputs[len(old) - len(function.weights) :]
    return remade(function, nodes, inputs=inputs, weights=weights), dict.fromkeys(chosen, form)


def _grouped_product(weight: str, product: onnx.NodeProto, form: Integers) -> list[onnx.NodeProto]:
    numbers = f"{weight}.numbers"
    attributes = {"axis": 0, "block_size": form.group}
    return [
        helper.make_node("DequantizeLinear", [number_name(weight, form), scale_name(weight)], [numbers], **attributes),
        helper.make_node("MatMul", [product.input[0], numbers], list(product.output), name=product.name),
    ]


def _dynamic_product(weight: str, product: onnx.NodeProto, form: Integers) -> list[onnx.NodeProto]:
    made = lambda part: f"{weight}.{part}"  # noqa: E731
    return [
        helper.make_node("DynamicQuantizeLinear", [product.input[0]], [made("x"), made("x_scale"), made("x_zero")]),
        helper.make_node("MatMulInteger", [made("x"), number_name(weight, form), made("x_zero")], [made("sums")]),
        helper.make_node("Cast", [made("sums")], [made("numbers")], to=TensorProto.FLOAT),
        helper.make_node("Mul", [made("x_scale"), scale_name(weight)], [made("step")]),
        helper.make_node("Mul", [made("numbers"), made("step")], list(product.output), name=product.name),
    ]
