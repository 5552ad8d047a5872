"""The whole ONNX graph of a model from its traced functions, and where its data file holds each weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from archcalc.config import ModelConfig
from export.onnx_from_torch import BATCH, DOMAIN, IR_VERSION, OPSET, POSITIONS, TOKENS, Function, Functions, windows
from export.precision import ExportPrecision
from models import build
from models.positions import rotary_tables

WEIGHTS = "weights.bin"  # the data file, beside the graphs; it holds the weights and nothing else


@dataclass(frozen=True)
class Stored:
    """A weight in the data file, contiguous at `offset`; `transposed` against the model's own tensor."""

    name: str
    shape: tuple[int, ...]
    transposed: bool
    offset: int
    nbytes: int


def cache_names(config: ModelConfig) -> list[tuple[str, str, tuple[int, int]]]:
    """(input, output, (K, H)) of each layer's keys and values, in the order of the graph."""
    found = []
    for index, block in enumerate(config.decoder.layers):
        attention = block.self_attn
        shape = (attention.num_key_value_heads, attention.head_dim)
        for part in ("key", "value"):
            found.append((f"past_key_values.{index}.{part}", f"present.{index}.{part}", shape))
    return found


def layout(config: ModelConfig, functions: Functions, precision: ExportPrecision) -> dict[str, Stored]:
    """Each weight's place in the data file, by its name in the model; a tied matrix once."""
    transposed = set(functions.stem.transposed | functions.head.transposed)
    for index, block in enumerate(config.decoder.layers):
        transposed |= {f"layers.{index}.{name}" for name in functions.blocks[block].transposed}
    places: dict[str, Stored] = {}
    offset = 0
    for name, parameter in build(config, device="meta").named_parameters():
        shape = tuple(reversed(parameter.shape)) if name in transposed else tuple(parameter.shape)
        nbytes = parameter.numel() * precision.numpy.itemsize
        places[name] = Stored(name, shape, name in transposed, offset, nbytes)
        offset += nbytes
    return places


def _external(place: Stored, precision: ExportPrecision) -> TensorProto:
    tensor = TensorProto(name=place.name, data_type=precision.onnx, dims=place.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _rotary_initializers(config: ModelConfig, precision: ExportPrecision, capacity: int) -> dict:
    """(cos, sin) tensors for each distinct rotary: {(rotary, head_dim): [cos, sin]}."""
    found: dict = {}
    for block in config.decoder.layers:
        key = (block.self_attn.rotary, block.self_attn.head_dim)
        if key[0] and key not in found:
            tables = rotary_tables(*key, capacity)
            names = [f"rotary_{len(found)}.{part}" for part in ("cos", "sin")]
            arrays = [np.ascontiguousarray(t.to(torch.float32).numpy().astype(precision.numpy)) for t in tables]
            found[key] = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
    return found


def _call(function: Function, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(function.proto.name, inputs, outputs, domain=DOMAIN, name=outputs[0])


def assemble(
    config: ModelConfig, functions: Functions, places: dict[str, Stored], precision: ExportPrecision, capacity: int
) -> onnx.ModelProto:
    """The graph over a cache of `capacity` tokens a sequence.

    Inputs: `input_ids` and `position_ids` [B, T], `write_indices` [B], `logit_indices` [B, R] (which of the T
    tokens get logits) and each layer's keys and values [B, K, C, H]. Outputs: `logits` [B, R, V] and the cache
    with the T tokens written at slots `write_indices` .. + T - 1.
    """
    rotary = _rotary_initializers(config, precision, capacity)
    initializers = [_external(place, precision) for place in places.values()]
    initializers += [tensor for pair in rotary.values() for tensor in pair]
    masks = {window: f"mask_{i}" for i, window in enumerate(windows(config))}
    stem_inputs = ["input_ids", "position_ids", *functions.stem.weights]
    nodes = [_call(functions.stem, stem_inputs, ["x.0", *masks.values()])]
    caches = cache_names(config)
    for index, block in enumerate(config.decoder.layers):
        function, attention = functions.blocks[block], block.self_attn
        past, present, _ = zip(*caches[2 * index : 2 * index + 2], strict=True)
        tables = [t.name for t in rotary[attention.rotary, attention.head_dim]] if attention.rotary else []
        rest = ["position_ids", "write_indices", masks[attention.sliding_window]]
        weights = [f"layers.{index}.{name}" for name in function.weights]
        nodes.append(_call(function, [f"x.{index}", *past, *tables, *rest, *weights], [f"x.{index + 1}", *present]))
    tied = {"lm_head.weight": "embed_tokens.weight"} if config.tie_word_embeddings else {}
    head_weights = [tied.get(name, name) for name in functions.head.weights]
    nodes.append(_call(functions.head, [f"x.{len(config.decoder.layers)}", "logit_indices", *head_weights], ["logits"]))
    value, ints = helper.make_tensor_value_info, TensorProto.INT64
    cache_in = [value(i, precision.onnx, [BATCH, k, capacity, h]) for i, _, (k, h) in caches]
    cache_out = [value(o, precision.onnx, [BATCH, k, capacity, h]) for _, o, (k, h) in caches]
    inputs = [
        value("input_ids", ints, [BATCH, TOKENS]),
        value("position_ids", ints, [BATCH, TOKENS]),
        value("write_indices", ints, [BATCH]),
        value("logit_indices", ints, [BATCH, POSITIONS]),
        *cache_in,
    ]
    outputs = [value("logits", precision.onnx, [BATCH, POSITIONS, config.vocab_size]), *cache_out]
    graph = helper.make_graph(nodes, config.name, inputs, outputs, initializers)
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    traced = [functions.stem.proto, *[f.proto for f in functions.blocks.values()], functions.head.proto]
    return helper.make_model(graph, opset_imports=imports, functions=traced, ir_version=IR_VERSION)


def write_weights(path: Path, places: dict[str, Stored], weight_of, precision: ExportPrecision, progress) -> None:
    """Write the data file a tensor at a time. `weight_of(name)` gives the model's tensor of that name."""
    with path.open("wb") as stream:
        for place in progress(places.values()):
            tensor = weight_of(place.name).detach()
            tensor = tensor.T if place.transposed else tensor
            array = tensor.contiguous().to(precision.torch).numpy()
            stream.write(memoryview(array).cast("B"))
