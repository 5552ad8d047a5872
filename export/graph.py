"""A stack's calls of its functions, the whole ONNX graph of a decoder, and where the data file holds each weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from archcalc.config import Attention, Block, LatentAttention, ModelConfig
from export.fused import fused
from export.mixture import linked
from export.onnx_from_torch import (
    Functions,
    Tracer,
    bias_source,
    distinct,
    first_attention,
    rotary_key,
    seen,
)
from export.packed import packed
from export.precision import ExportPrecision
from export.quantize import INTEGERS, Integers, number_name, quantized, scale_name
from export.tracing import BATCH, DOMAIN, OPSET, POSITIONS, SOURCE, TOKENS, Function, pruned
from models.cache import shapes
from models.names.rules import alternatives
from models.positions import rotary_tables

ALWAYS_FP32 = ".correction_bias"  # which expert a token goes to changes with a rounding
IR_VERSION = 11  # of the first ONNX release with opset 24
WEIGHTS = "weights.bin"  # the data file, beside the graphs; it holds the weights and nothing else


@dataclass(frozen=True)
class Stored:
    """A tensor in a data file, contiguous at `offset`.

    Args:
        weights: the model's tensors whose rows it holds, one tensor below the other, and the first row of each; as
            they are or, with a `form`, as their integers or the scale of these.
        data_type: ONNX's.
        file: beside the graphs; the one of the build, or a linked one.
    """

    name: str
    weights: dict[str, int]
    data_type: int
    shape: tuple[int, ...]
    offset: int
    form: Integers | None = None
    file: str = WEIGHTS

    @property
    def waits(self) -> bool:
        """Whether it is written when the last of its rows is there; others are as their rows come."""
        return self.form is not None or len(self.weights) > 1

    @property
    def nbytes(self) -> int:
        if self.data_type == TensorProto.INT4:
            return -(-prod(self.shape) // 2)
        return prod(self.shape) * helper.tensor_dtype_to_np_dtype(self.data_type).itemsize


class State(NamedTuple):
    """One tensor that a layer keeps: the graph's input and output, and its axes after the batch."""

    past: str
    present: str
    shape: tuple[int, ...]


def states(config: ModelConfig, capacity: int) -> list[list[State]]:
    """What each layer keeps, in the order of the graph."""
    return [_layer_states(index, block.self_attn, capacity) for index, block in enumerate(config.decoder.layers)]


def every_state(config: ModelConfig, capacity: int) -> list[State]:
    """What all layers keep."""
    return [state for layer in states(config, capacity) for state in layer]


def _layer_states(index: int, mixer, capacity: int) -> list[State]:
    names = ("conv", "state")
    if isinstance(mixer, Attention | LatentAttention):
        names = ("latent", "rotary_key") if isinstance(mixer, LatentAttention) else ("key", "value")
    kept = zip(names, shapes(mixer, 1, capacity), strict=False)
    return [State(f"past_key_values.{index}.{n}", f"present.{index}.{n}", shape[1:]) for n, shape in kept]


@dataclass(frozen=True)
class Parts:
    """The functions that a graph calls, over the weights as they are stored; `forms` of those that are integers.

    Quantized functions read other tensors than the traced ones: `forms` maps (function, weight) to how it is stored.
    """

    functions: Functions
    forms: dict[str, dict[str, Integers]]


def parts(tracer: Tracer, precision: ExportPrecision, target: str = "any", pack: bool = True) -> Parts:
    """The traced functions, with integers for matrices where the precision says so, for any runtime or for one.

    Args:
        pack: whether the runtime that wants it gets matrices in one that lie apart in the model.
    """
    functions = tracer.functions()
    if target == "onnxruntime" and functions.stack == "decoder":
        functions = fused(functions)
        functions = packed(functions, tracer) if pack else functions
    functions = replace(functions, stem=_needed(tracer.blocks, functions))
    if precision.quantization is None:
        return Parts(*linked(functions, {}, target))
    made = {f.name: quantized(f, precision.quantization) for f in functions.every}
    forms = {name: forms for name, (_, forms) in made.items()}
    return Parts(*linked(functions.changed(lambda function: made[function.name][0]), forms, target))


def _needed(blocks: tuple[Block, ...], functions: Functions) -> Function:
    """The stem with those outputs that a block reads."""
    layers = zip(blocks, shared_inputs(blocks), strict=True)
    read = {names.get(i, i) for block, names in layers for i in functions.blocks[block].proto.input}
    outputs = list(functions.stem.proto.output)
    return pruned(functions.stem, outputs[:1] + [output for output in outputs[1:] if output in read])


def shared_inputs(blocks: tuple[Block, ...]) -> list[dict[str, str]]:
    """For each layer, which of the stack's masks, biases and rotary tables its `mask`, `bias`, `cos` and `sin` are."""
    rotary = [*map(rotary_key, blocks)]
    biases = [bias_source(blocks, index) for index in range(len(blocks))]
    seen_by = {"mask": [*map(seen, blocks)], "bias": biases, "cos": rotary, "sin": rotary}
    numbers = {name: distinct(keys) for name, keys in seen_by.items()}
    return [
        {name: f"{name}.{numbers[name].index(keys[index])}" for name, keys in seen_by.items() if keys[index]}
        for index in range(len(blocks))
    ]


def calls(config: ModelConfig, found: Parts) -> list[tuple[str, Function]]:
    """Every call of the graph, in order: (prefix of its weights' names, function)."""
    functions = found.functions
    prefix = f"{functions.stack}." if len(config.stacks) > 1 else ""
    blocks = [(f"{prefix}layers.{i}.", functions.blocks[b]) for i, b in enumerate(_layers(config, functions))]
    ends = [("", functions.head)] if functions.head else []
    readers = enumerate(config.decoder.layers) if functions.cross else ()
    crosses = [(f"decoder.layers.{i}.cross_attn.", functions.cross[b.cross_attn]) for i, b in readers]
    return [("", functions.stem), *blocks, *ends, *crosses]


def _layers(config: ModelConfig, functions: Functions) -> tuple[Block, ...]:
    return config.stacks[functions.stack].layers


def layout(
    called: Iterable[tuple[str, Function]],
    forms: dict[str, dict[str, Integers]],
    weights: dict[str, torch.Tensor],
    precision: ExportPrecision,
) -> dict[str, Stored]:
    """Each tensor's place in the data file, by its name in the graph, in the order of the model's weights.

    Args:
        weights: the model's by name, on any device; a tied one once.
    """
    order = {name: index for index, name in enumerate(weights)}
    wanted: dict[str, dict[str, Stored]] = {name: {} for name in weights}
    for prefix, function in called:
        integers = {}
        for weight, form in forms.get(function.name, {}).items():
            begins, (columns, rows) = _rows(prefix + weight, weights)
            entries = (
                (number_name(prefix + weight, form), INTEGERS[form.bits][0], (rows, columns)),
                (scale_name(prefix + weight), precision.onnx, form.scale_shape(rows, columns)),
            )
            for name, data_type, shape in entries:
                integers[name] = Stored(name, begins, data_type, shape, 0, form)
        for name in (prefix + one for one in function.weights):
            one = integers.get(name) or _plain(name, weights, precision)
            wanted[max(one.weights, key=order.__getitem__)].setdefault(name, one)
    places, offset = {}, 0
    for found in wanted.values():
        for one in sorted(found.values(), key=lambda one: one.waits):  # the order in which they are written
            places[one.name] = replace(one, offset=offset)
            offset += one.nbytes
    return places


def _plain(name: str, weights: dict[str, torch.Tensor], precision: ExportPrecision) -> Stored:
    begins, shape = _rows(name, weights)
    return Stored(name, begins, TensorProto.FLOAT if name.endswith(ALWAYS_FP32) else precision.onnx, shape, 0)


def _rows(name: str, weights: dict[str, torch.Tensor]) -> tuple[dict[str, int], tuple[int, ...]]:
    """(first row of each weight that a name stands for, shape of all of them, one below the other)."""
    begins, rows = {}, 0
    for weight in alternatives(name):
        begins[weight] = rows
        rows += len(weights[weight])
    return begins, (rows, *weights[next(iter(begins))].shape[1:])


def _external(place: Stored) -> TensorProto:
    tensor = TensorProto(name=place.name, data_type=place.data_type, dims=place.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", place.file), ("offset", place.offset), ("length", place.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _rotary_initializers(config: ModelConfig, precision: ExportPrecision, capacity: int) -> list[TensorProto]:
    """`cos.i` and `sin.i` for each distinct rotary."""
    found = []
    for number, key in enumerate(distinct(map(rotary_key, config.decoder.layers))):
        for part, table in zip(("cos", "sin"), rotary_tables(*key, capacity), strict=True):
            array = np.ascontiguousarray(table.numpy().astype(precision.numpy))
            found.append(numpy_helper.from_array(array, f"{part}.{number}"))
    return found


def call(function: Function, prefix: str, values: dict[str, str], outputs: list[str]) -> onnx.NodeProto:
    """A call that reads `values` by the names of the function's inputs, and its weights by theirs."""
    inputs = [values[i] if i in values else prefix + i for i in function.proto.input]
    return helper.make_node(function.name, inputs, outputs, domain=DOMAIN, name=outputs[0])


def stack_calls(
    config: ModelConfig, found: Parts, given: dict[str, str], kept: list[list[State]] | None = None
) -> list[onnx.NodeProto]:
    """The calls of the stem and of each block; `x.i` is what goes into block i, the last one comes out of the stack.

    Args:
        given: the graph's value for each name that functions have for it. kept: what each layer keeps.
    """
    blocks = _layers(config, found.functions)
    (_, stem), *layers = calls(config, found)[: len(blocks) + 1]
    shared = given | {name: name for name in stem.proto.output[1:]}
    nodes = [call(stem, "", shared, ["x.0", *stem.proto.output[1:]])]
    for index, (names, (prefix, function)) in enumerate(zip(shared_inputs(blocks), layers, strict=True)):
        values, states = shared | names | {"x": f"x.{index}"}, kept[index] if kept else []
        values |= {f"past.{i}": state.past for i, state in enumerate(states)}
        values |= {f"cross_{kind}": cross_name(index, kind) for kind in ("key", "value")}
        values |= {"first_values": f"values.{first_attention(blocks)}", "skip": f"x.{len(blocks) - index}"}
        own = [f"values.{index}"] if "values" in function.proto.output else []
        nodes.append(call(function, prefix, values, [f"x.{index + 1}", *(state.present for state in states), *own]))
    return nodes


def cross_name(index: int, kind: str) -> str:
    """The tensor of a decoder layer's cross-attention, its `key` or its `value`."""
    return f"cross.{index}.{kind}"


def source_axis(config: ModelConfig) -> str | int:
    """How many tokens a source has: any number, or of a model that listens the one that it was made for."""
    return config.frontend.tokens if config.frontend else SOURCE


def cross_tensors(config: ModelConfig) -> dict[str, list]:
    """What a decoder reads of a source by name, with its axes: keys and values [B, K, X, H] of each layer."""
    return {
        cross_name(index, kind): list(shape)
        for index, block in enumerate(config.decoder.layers if config.encoder else ())
        for kind, shape in zip(("key", "value"), shapes(block.cross_attn, BATCH, source_axis(config)), strict=True)
    }


def assemble(
    config: ModelConfig, found: Parts, places: dict[str, Stored], precision: ExportPrecision, capacity: int
) -> onnx.ModelProto:
    """The graph over a cache of `capacity` tokens a sequence.

    Inputs: `input_ids` and `position_ids` [B, T], `write_indices` [B], `logit_indices` [B, R] (which of the T
    tokens get logits) and what each layer keeps, keys and values [B, K, C, H]. Outputs: `logits` [B, R, V] and what
    is kept with the T tokens written at slots `write_indices` .. + T - 1. A token's slot may differ from its
    position, by the padding in front of its row, where positions are below 0. With an encoder: also `source_mask`
    [B, X], True where a source token is no padding, and `cross_tensors`.
    """
    kept = states(config, capacity)
    inputs, outputs = _interface(config, kept, precision)
    nodes = stack_calls(config, found, {value.name: value.name for value in inputs}, kept)
    last = {"x": f"x.{len(config.decoder.layers)}", "logit_indices": "logit_indices"}
    nodes.append(call(found.functions.head, "", last, ["logits"]))
    tables = _rotary_initializers(config, precision, capacity)
    return model(config.name, found, nodes, inputs, outputs, places, tables)


def _interface(config: ModelConfig, kept: list[list[State]], precision: ExportPrecision) -> tuple[list, list]:
    """Inputs and outputs of a decoder's graph."""
    value, ints, every = helper.make_tensor_value_info, TensorProto.INT64, [state for layer in kept for state in layer]
    inputs = [
        value("input_ids", ints, [BATCH, TOKENS]),
        value("position_ids", ints, [BATCH, TOKENS]),
        value("write_indices", ints, [BATCH]),
        value("logit_indices", ints, [BATCH, POSITIONS]),
        *(value(one.past, precision.onnx, [BATCH, *one.shape]) for one in every),
        *([value("source_mask", TensorProto.BOOL, [BATCH, source_axis(config)])] if config.encoder else ()),
        *(value(name, precision.onnx, shape) for name, shape in cross_tensors(config).items()),
    ]
    outputs = [
        value("logits", precision.onnx, [BATCH, POSITIONS, config.vocab_size]),
        *(value(one.present, precision.onnx, [BATCH, *one.shape]) for one in every),
    ]
    return inputs, outputs


def model(
    name: str,
    found: Parts,
    nodes: list[onnx.NodeProto],
    inputs: list,
    outputs: list,
    places: dict[str, Stored],
    constants: Iterable[TensorProto] = (),
) -> onnx.ModelProto:
    """The graph with the functions that it calls and those of the stored tensors that they read."""
    read = {tensor for node in nodes for tensor in node.input}
    initializers = [_external(place) for place in places.values() if place.name in read]
    graph = helper.make_graph(nodes, name, inputs, outputs, [*initializers, *constants])
    protos = [function.proto for function in found.functions.every]
    versions = {one.domain: one.version for proto in protos for one in proto.opset_import} | {"": OPSET, DOMAIN: 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, functions=protos, ir_version=IR_VERSION)
