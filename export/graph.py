"""The whole ONNX graph of a decoder from its functions, and where its data file holds each weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from archcalc.config import Attention, LatentAttention, ModelConfig
from export.fused import fused
from export.onnx_from_torch import Functions, Tracer, bias_source, distinct, rotary_key, seen
from export.precision import ExportPrecision
from export.quantize import INTEGERS, Integers, number_name, quantized, scale_name
from export.tracing import BATCH, DOMAIN, OPSET, POSITIONS, TOKENS, Function, pruned
from models.cache import shapes
from models.positions import rotary_tables

IR_VERSION = 11  # of the first ONNX release with opset 24
WEIGHTS = "weights.bin"  # the data file, beside the graphs; it holds the weights and nothing else


@dataclass(frozen=True)
class Stored:
    """A tensor in the data file, contiguous at `offset`.

    Args:
        weight: the model's tensor that it comes from, as it is or, with a `form`, its integers or their scale.
        data_type: ONNX's.
    """

    name: str
    weight: str
    data_type: int
    shape: tuple[int, ...]
    offset: int
    form: Integers | None = None

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


def parts(tracer: Tracer, precision: ExportPrecision, target: str = "any") -> Parts:
    """The traced functions, with integers for matrices where the precision says so, for any runtime or for one."""
    functions = tracer.functions()
    functions = fused(functions) if target == "onnxruntime" else functions
    functions = replace(functions, stem=_needed(tracer.config, functions))
    if precision.quantization is None:
        return Parts(functions, {})
    made = {f.name: quantized(f, precision.quantization) for f in functions.every}
    new = {name: function for name, (function, _) in made.items()}
    blocks = {kind: new[function.name] for kind, function in functions.blocks.items()}
    return Parts(Functions(new["Stem"], blocks, new["Head"]), {name: forms for name, (_, forms) in made.items()})


def _needed(config: ModelConfig, functions: Functions) -> Function:
    """The stem with those outputs that a block reads."""
    layers = zip(config.decoder.layers, shared_inputs(config), strict=True)
    read = {names.get(i, i) for block, names in layers for i in functions.blocks[block].proto.input}
    outputs = list(functions.stem.proto.output)
    return pruned(functions.stem, outputs[:1] + [output for output in outputs[1:] if output in read])


def shared_inputs(config: ModelConfig) -> list[dict[str, str]]:
    """For each layer, the stem's output that its `mask` and its `bias` are."""
    blocks = config.decoder.layers
    seen_by = {"mask": [*map(seen, blocks)], "bias": [bias_source(blocks, index) for index in range(len(blocks))]}
    numbers = {name: distinct(keys) for name, keys in seen_by.items()}
    return [
        {name: f"{name}.{numbers[name].index(keys[index])}" for name, keys in seen_by.items() if keys[index]}
        for index in range(len(blocks))
    ]


def calls(config: ModelConfig, found: Parts) -> list[tuple[str, Function]]:
    """Every call of the graph: (prefix of its weights' names, function)."""
    functions, prefix = found.functions, "decoder." if config.encoder else ""
    blocks = [(f"{prefix}layers.{i}.", functions.blocks[b]) for i, b in enumerate(config.decoder.layers)]
    return [("", functions.stem), *blocks, ("", functions.head)]


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
    wanted: dict[str, dict[str, Stored]] = {name: {} for name in weights}
    for prefix, function in called:
        integers = {}
        for weight, form in forms.get(function.name, {}).items():
            rows, columns = reversed(weights[prefix + weight].shape)
            entries = (
                (number_name(prefix + weight, form), INTEGERS[form.bits][0], (rows, columns)),
                (scale_name(prefix + weight), precision.onnx, form.scale_shape(rows, columns)),
            )
            for name, data_type, shape in entries:
                integers[name] = Stored(name, prefix + weight, data_type, shape, 0, form)
        for name in (prefix + one for one in function.weights):
            plain = integers.get(name) or Stored(name, name, precision.onnx, tuple(weights[name].shape), 0)
            wanted[plain.weight].setdefault(name, plain)
    places, offset = {}, 0
    for found in wanted.values():
        for name, one in found.items():
            places[name] = Stored(one.name, one.weight, one.data_type, one.shape, offset, one.form)
            offset += one.nbytes
    return places


def _external(place: Stored) -> TensorProto:
    tensor = TensorProto(name=place.name, data_type=place.data_type, dims=place.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _rotary_initializers(config: ModelConfig, precision: ExportPrecision, capacity: int) -> dict[tuple, list]:
    """(cos, sin) tensors for each distinct rotary."""
    found = {}
    for number, key in enumerate(distinct(map(rotary_key, config.decoder.layers))):
        tables = zip(("cos", "sin"), rotary_tables(*key, capacity), strict=True)
        arrays = {part: np.ascontiguousarray(table.numpy().astype(precision.numpy)) for part, table in tables}
        found[key] = [numpy_helper.from_array(array, f"rotary_{number}.{part}") for part, array in arrays.items()]
    return found


def call(function: Function, prefix: str, values: dict[str, str], outputs: list[str]) -> onnx.NodeProto:
    """A call that reads `values` by the names of the function's inputs, and its weights by theirs."""
    inputs = [values[i] if i in values else prefix + i for i in function.proto.input]
    return helper.make_node(function.name, inputs, outputs, domain=DOMAIN, name=outputs[0])


def assemble(
    config: ModelConfig, found: Parts, places: dict[str, Stored], precision: ExportPrecision, capacity: int
) -> onnx.ModelProto:
    """The graph over a cache of `capacity` tokens a sequence.

    Inputs: `input_ids` and `position_ids` [B, T], `write_indices` [B], `logit_indices` [B, R] (which of the T
    tokens get logits) and what each layer keeps, keys and values [B, K, C, H]. Outputs: `logits` [B, R, V] and what
    is kept with the T tokens written at slots `write_indices` .. + T - 1. A token's slot may differ from its
    position, by the padding in front of its row, where positions are below 0.
    """
    blocks, functions = config.decoder.layers, found.functions
    rotary = _rotary_initializers(config, precision, capacity)
    kept, given = states(config, capacity), shared_inputs(config)
    (_, stem), *layers, (_, head) = calls(config, found)
    shared = {name: name for name in ("input_ids", "position_ids", "write_indices", *stem.proto.output[1:])}
    nodes = [call(stem, "", shared, ["x.0", *stem.proto.output[1:]])]
    for index, (block, (prefix, function)) in enumerate(zip(blocks, layers, strict=True)):
        values = shared | given[index] | {"x": f"x.{index}"}
        values |= {f"past.{i}": state.past for i, state in enumerate(kept[index])}
        if key := rotary_key(block):
            values |= dict(zip(("cos", "sin"), (tensor.name for tensor in rotary[key]), strict=True))
        nodes.append(call(function, prefix, values, [f"x.{index + 1}", *(state.present for state in kept[index])]))
    values = {"x": f"x.{len(blocks)}", "logit_indices": "logit_indices"}
    nodes.append(call(head, "", values, ["logits"]))
    inputs, outputs = _interface(config, kept, precision)
    initializers = [_external(place) for place in places.values()]
    initializers += [tensor for pair in rotary.values() for tensor in pair]
    graph = helper.make_graph(nodes, config.name, inputs, outputs, initializers)
    return model(graph, functions.every)


def _interface(config: ModelConfig, kept: list[list[State]], precision: ExportPrecision) -> tuple[list, list]:
    """Inputs and outputs of a decoder's graph."""
    value, ints, every = helper.make_tensor_value_info, TensorProto.INT64, [state for layer in kept for state in layer]
    inputs = [
        value("input_ids", ints, [BATCH, TOKENS]),
        value("position_ids", ints, [BATCH, TOKENS]),
        value("write_indices", ints, [BATCH]),
        value("logit_indices", ints, [BATCH, POSITIONS]),
        *(value(one.past, precision.onnx, [BATCH, *one.shape]) for one in every),
    ]
    outputs = [
        value("logits", precision.onnx, [BATCH, POSITIONS, config.vocab_size]),
        *(value(one.present, precision.onnx, [BATCH, *one.shape]) for one in every),
    ]
    return inputs, outputs


def model(graph: onnx.GraphProto, functions: Iterable[Function]) -> onnx.ModelProto:
    """The graph with the functions that it calls."""
    protos = [function.proto for function in functions]
    versions = {one.domain: one.version for proto in protos for one in proto.opset_import} | {"": OPSET, DOMAIN: 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, functions=protos, ir_version=IR_VERSION)
