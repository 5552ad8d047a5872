"""An encoder's parts as ONNX functions, and its graph: what runs once a source.

Of an encoder that feeds a decoder the graph ends with the keys and values of every decoder layer's cross-attention, so
that no decoding step computes them again; of one that stands alone, with what its head makes of every token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import onnx
import torch
from onnx import TensorProto, helper

from archcalc.config import Attention, ModelConfig
from export.files import ExportError
from export.graph import Parts, Stored, call, calls, cross_name, cross_tensors, model, source_axis, stack_calls
from export.onnx_from_torch import (
    BATCH_SIZE,
    GRID,
    TOKEN_COUNT,
    Functions,
    Tracer,
    bias_source,
    distinct,
    kinds,
    rotary_key,
    seen,
)
from export.precision import ExportPrecision
from export.tracing import BATCH, SOURCE, Function, trace_function
from models.language_model import counted_positions
from models.positions import padding_mask, rotary_tables

ENCODER = "encoder.onnx"


def output(config: ModelConfig) -> tuple[str, list]:
    """What the head of an encoder without a decoder makes: its name and axes."""
    if config.head.kind == "pooler":
        return "pooled", [BATCH, config.hidden_size]
    if config.head.has_logits:
        return "logits", [BATCH, SOURCE, config.vocab_size]
    return "hidden_states", [BATCH, SOURCE, config.hidden_size]


def outputs(config: ModelConfig) -> dict[str, list]:
    """The graph's outputs by name, with their axes."""
    return cross_tensors(config) if config.decoder else dict([output(config)])


def inputs(config: ModelConfig, floats: int) -> dict[str, tuple[int, list]]:
    """The graph's inputs by name: ONNX's data type and axes. `floats` is that of activations."""
    found: dict[str, tuple[int, list]] = {"input_ids": (TensorProto.INT64, [BATCH, SOURCE])}
    if frontend := config.frontend:
        found = {"input_features": (floats, [BATCH, 2 * frontend.tokens, frontend.num_mel_bins])}
    found["source_mask"] = (TensorProto.BOOL, [BATCH, source_axis(config)])
    if has_types(config):
        found["token_type_ids"] = (TensorProto.INT64, [BATCH, SOURCE])
    return found


def has_types(config: ModelConfig) -> bool:
    """Whether a token's type can be chosen."""
    return config.decoder is None and config.embedding.type_vocab_size > 1


class EncoderTracer(Tracer):
    """Traces the parts of a model's encoder. Args: dtype: of weights and activations."""

    part = "encoder"

    def __init__(self, config: ModelConfig, dtype: torch.dtype):
        super().__init__(config, dtype, None)

    def stem(self) -> Function:
        """Vectors `x`, and what all blocks see: `positions`, `mask.i`, `bias.i`, `cos.i`, `sin.i`.

        A token's position is its place among those that are no padding. Rotary tables are computed, for a source has
        no capacity that they could be stored for.
        """
        masks, rotaries = distinct(map(seen, self.blocks)), distinct(map(rotary_key, self.blocks))
        biases = distinct(bias_source(self.blocks, index) for index in range(len(self.blocks)))

        def run(source, source_mask_BT, type_ids_BT=None):
            positions_BT, tokens = counted_positions(source_mask_BT), source_mask_BT.shape[1]
            x_BTD = self._vectors(source, positions_BT, type_ids_BT)
            ahead_BTT = positions_BT[:, None, :] - positions_BT[:, :, None]
            found = [padding_mask(source_mask_BT, tokens) for _ in masks]
            found += [self.bias(one, ahead_BTT) for one in biases]
            tables = [[table.to(self.dtype) for table in rotary_tables(*key, tokens)] for key in rotaries]
            return x_BTD, positions_BT, *found, *(table for pair in tables for table in pair)

        made = ["x", "positions", *(f"mask.{i}" for i in range(len(masks)))]
        made += [f"bias.{i}" for i in range(len(biases))]
        made += [f"{part}.{i}" for i in range(len(rotaries)) for part in ("cos", "sin")]
        return trace_function("EncoderStem", self.model, run, self._inputs(), made, self.root_weights())

    def _inputs(self) -> dict[str, tuple[torch.Tensor, dict[int, str]]]:
        """An example of each input of the graph."""
        types = {TensorProto.INT64: torch.int64, TensorProto.BOOL: torch.bool, TensorProto.FLOAT: self.dtype}
        sizes, found = {BATCH: BATCH_SIZE, SOURCE: TOKEN_COUNT}, {}
        for name, (data_type, axes) in inputs(self.config, TensorProto.FLOAT).items():
            example = self.new(*(sizes.get(axis, axis) for axis in axes), dtype=types[data_type])
            found[name] = (example, {place: axis for place, axis in enumerate(axes) if axis in sizes})
        return found

    def _vectors(self, source, positions_BT, type_ids_BT) -> torch.Tensor:
        if self.config.frontend:
            return self.stack.embed(self.stack.listen(source), positions_BT)
        if self.stack is self.model:
            return self.model.stem(source, positions_BT, type_ids_BT)
        return self.model.stem(self.stack, source, positions_BT)

    def head(self) -> Function | None:
        """The final norm where a decoder follows and there is one; else logits, a pooled vector or hidden states."""
        x = self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size)
        if self.config.decoder:
            if (norm := self.stack.norm) is None:
                return None
            read = {"x": (x, GRID)}
            return trace_function("EncoderNorm", self.model, norm.forward, read, ["states"], self.root_weights())

        def run(x_BTD, source_mask_BT):
            if self.config.head.kind == "pooler":  # it reads the first token that is no padding
                first_B11 = source_mask_BT.long().argmax(-1)[:, None, None]
                x_BTD = x_BTD.gather(1, first_B11.expand(-1, -1, self.config.hidden_size))
            return self.model.head(x_BTD)

        read = {"x": (x, GRID), "source_mask": (self.new(BATCH_SIZE, TOKEN_COUNT, dtype=torch.bool), GRID)}
        return trace_function("Head", self.model, run, read, [output(self.config)[0]], self.root_weights())

    def cross(self, kind: Attention, name: str) -> Function:
        """Keys and values [B, K, X, H] of a decoder layer with this cross-attention."""
        layer = next(layer for layer in self.model.decoder.layers if layer.config.cross_attn == kind)
        read = {"states": (self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size), GRID)}
        return trace_function(name, layer.cross_attn, layer.cross_attn.keys_values, read, ["key", "value"])

    def functions(self) -> Functions:
        """All parts."""
        blocks = {kind: self.block(kind, f"EncoderBlock{number}") for number, kind in enumerate(kinds(self.blocks))}
        readers = self.config.decoder.layers if self.config.decoder else ()
        crosses = distinct(block.cross_attn for block in readers)
        cross = {kind: self.cross(kind, f"Cross{number}") for number, kind in enumerate(crosses)}
        return Functions(self.stem(), blocks, self.head(), cross, "encoder")


def assemble_encoder(
    config: ModelConfig, found: Parts, places: dict[str, Stored], precision: ExportPrecision
) -> onnx.ModelProto:
    """The graph of what runs once a source.

    Inputs: `input_ids` [B, X], or `input_features` [B, F, z] of a model that listens, and `source_mask` [B, X], False
    where a token is padding; `token_type_ids` [B, X] of a model with types. Outputs: `cross.i.key` and `cross.i.value`
    [B, K, X, H] of every decoder layer, or the head's: see `output`.
    """
    value, read = helper.make_tensor_value_info, inputs(config, precision.onnx)
    given = {name: name for name in read} | {"present": "source_mask"}
    nodes, head = stack_calls(config, found, given), found.functions.head
    last = f"x.{len(config.encoder.layers)}"
    if head:
        result = "states" if config.decoder else output(config)[0]
        nodes.append(call(head, "", given | {"x": last}, [result]))
        last = result
    ends = calls(config, found)[-len(config.decoder.layers) :] if config.decoder else []
    for index, (prefix, function) in enumerate(ends):
        made = [cross_name(index, kind) for kind in ("key", "value")]
        nodes.append(call(function, prefix, {"states": last}, made))
    ins = [value(name, *kind) for name, kind in read.items()]
    outs = [value(name, precision.onnx, axes) for name, axes in outputs(config).items()]
    return model(config.name, found, nodes, ins, outs, places)


# What makes keys and values of a source, in a layer's cross-attention.
MAKES_CROSS = re.compile(r"decoder\.layers\.\d+\.cross_attn\.(k_proj|v_proj|k_norm)\.")


def check_cross_once(config: ModelConfig, encoder: onnx.ModelProto, decoders: Iterable[onnx.ModelProto]) -> None:
    """Raise ExportError unless cross keys and values are made by the encoder's graph, once, and by nothing else.

    Every weight that makes them is read by one call of that graph. A decoder's graph holds none of them, under that
    name or as the same bytes of a file, and reads each key and value in one call.
    """
    every = _reads(encoder)
    makes = {name: count for name, count in every.items() if MAKES_CROSS.match(name)}
    layers = range(len(config.decoder.layers))
    wanted = [f"decoder.layers.{i}.cross_attn.{part}.weight" for i in layers for part in ("k_proj", "v_proj")]
    problems = [f"{w} is not in {ENCODER}" for w in wanted if not any(name.startswith(w) for name in makes)]
    problems += [f"{name} is read {count} times" for name, count in makes.items() if count != 1]
    taken = {place for name, place in _places(encoder).items() if name in makes}
    for decoder in decoders:
        again = [n for n, place in _places(decoder).items() if MAKES_CROSS.match(n) or place in taken]
        problems += [f"{name} is in a decoder's graph" for name in again]
        counts = _reads(decoder)
        problems += [f"{n} is read {counts[n]} times by a decoder" for n in cross_tensors(config) if counts[n] != 1]
    if problems:
        raise ExportError(f"{config.name}: cross keys and values must be made once a source, but {'; '.join(problems)}")


def _reads(graph: onnx.ModelProto) -> Counter[str]:
    """How many calls read each tensor."""
    return Counter(tensor for node in graph.graph.node for tensor in set(node.input))


def _places(graph: onnx.ModelProto) -> dict[str, tuple[str | None, str | None]]:
    """The file, and where in it, of each stored tensor of a graph."""
    entries = {one.name: {entry.key: entry.value for entry in one.external_data} for one in graph.graph.initializer}
    return {name: (found.get("location"), found.get("offset")) for name, found in entries.items() if found}
