"""A reference model as an ONNX graph: each kind of block is traced once and called once a layer.

The graph is `Stem`, `Block` x layers, `Head`: model-local functions that take their weights as inputs. So the
file reads like the architecture, tracing time does not grow with depth, and no weight is touched here:
the graph refers to a data file, which `export.weights` fills a tensor at a time.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import torch
from onnx import helper
from torch import nn

from archcalc.config import Block, ModelConfig
from export.expressible import check_exportable
from export.onnx_kernels import OPSET, OnnxKernels
from models import build
from models.cache import Past
from models.positions import Context, causal_mask

DOMAIN = "archcalc"
IR_VERSION = 11  # of the first ONNX release with opset 24
BATCH, TOKENS, POSITIONS = "batch", "tokens", "logit_positions"


@dataclass(frozen=True)
class Function:
    """A traced part: its ONNX function, the names of its weights in order, and those to store transposed."""

    proto: onnx.FunctionProto
    weights: tuple[str, ...]
    transposed: frozenset[str]


class _Part(nn.Module):
    """A method of a module, as a module that takes that module's weights as arguments."""

    def __init__(self, module: nn.Module, method: Callable, names: list[str]):
        super().__init__()
        self.names = names
        holder = nn.Module()
        holder.part = module
        holder.forward = method
        object.__setattr__(self, "holder", holder)  # unregistered: its own weights are no part of the trace

    def forward(self, inputs, weights):
        return torch.func.functional_call(self.holder, dict(zip(self.names, weights, strict=True)), inputs)


def _trace(module: nn.Module, method: Callable, weights: dict, inputs: dict, dynamic: list, outputs: list[str]):
    """The graph of `method(*inputs)` with the module's weights as further inputs.

    Args:
        weights: tensors by their names in `module`. dynamic: for each input, which axes are symbols.
    """
    names = [f"part.{name}" for name in weights]
    with warnings.catch_warnings(), _quiet(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Part(module, method, names),
            (tuple(inputs.values()), list(weights.values())),
            dynamo=True,
            opset_version=OPSET,
            input_names=[*inputs, *weights],
            output_names=outputs,
            dynamic_shapes=(tuple(dynamic), [None] * len(weights)),
            verbose=False,
        )
    return program.model_proto.graph


@contextlib.contextmanager
def _quiet():
    """Silence the exporter's notes about packages that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _function(name: str, graph: onnx.GraphProto, weights: list[str]) -> Function:
    """A graph as a function. A matrix that is only ever transposed is to be stored that way instead."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    transposed = frozenset(
        w for w in weights if readers.get(w) and all(node.op_type == "Transpose" for node in readers[w])
    )
    renamed = {node.output[0]: node.input[0] for w in transposed for node in readers[w]}
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in transposed:
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(tensor, tensor) for tensor in node.input]
        copy.ClearField("metadata_props")
        copy.ClearField("doc_string")
        nodes.append(copy)
    inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
    imports = [helper.make_opsetid("", OPSET)]
    return Function(helper.make_function(DOMAIN, name, inputs, outputs, nodes, imports), tuple(weights), transposed)


def kinds(config: ModelConfig) -> list[Block]:
    """The distinct blocks, in the order of their first layer."""
    return list(dict.fromkeys(config.decoder.layers))


@dataclass(frozen=True)
class Functions:
    """The traced parts of one model at one precision and capacity; a block for each distinct kind."""

    stem: Function
    blocks: dict[Block, Function]
    head: Function


class _Tracer:
    """Traces the parts of one model at one precision and cache capacity (tokens)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, capacity: int):
        self.config, self.dtype, self.capacity = config, dtype, capacity
        self.model = build(config, kernels=OnnxKernels, device="meta", dtype=dtype)
        self.rows = {0: torch.export.Dim(BATCH)}
        self.grid = self.rows | {1: torch.export.Dim(TOKENS)}

    def _new(self, *shape: int, dtype=None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype)  # never read: tracing needs shapes alone

    def _ids(self) -> torch.Tensor:
        return self._new(2, 3, dtype=torch.int64)

    def _weights(self, module: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
        return {prefix + name: self._new(*p.shape) for name, p in module.named_parameters()}

    def stem(self) -> Function:
        """Token ids and positions to vectors, and one mask [B, 1, T, C] for each distinct window."""
        slots_1C = torch.arange(self.capacity)[None]

        def run(ids_BT, position_ids_BT):
            masks = [causal_mask(position_ids_BT, slots_1C, window) for window in windows(self.config)]
            return self.model.stem(ids_BT, position_ids_BT), *masks

        weights: dict[str, torch.Tensor] = {}
        for name, part in self.model.named_children():
            weights |= self._weights(part, f"{name}.") if name.startswith("embed_") else {}
        outputs = ["x", *[f"mask_{i}" for i in range(len(windows(self.config)))]]
        inputs = {"input_ids": self._ids(), "position_ids": self._ids()}
        graph = _trace(self.model, run, weights, inputs, [self.grid, self.grid], outputs)
        return _function("Stem", graph, list(weights))

    def block(self, kind: Block, name: str) -> Function:
        """One layer of this kind, with its cache; its weights are named as inside the layer."""
        layer = self.model.layers[self.config.decoder.layers.index(kind)]
        attention = kind.self_attn
        cache = (2, attention.num_key_value_heads, self.capacity, attention.head_dim)
        inputs = {"x": self._new(2, 3, self.config.hidden_size), "key": self._new(*cache), "value": self._new(*cache)}
        dynamic: list = [self.grid, self.rows, self.rows]
        if attention.rotary:
            table = (self.capacity, int(attention.head_dim * attention.rotary.partial_rotary_factor) // 2)
            inputs |= {"cos": self._new(*table), "sin": self._new(*table)}
            dynamic += [None, None]
        mask = self._new(2, 1, 3, self.capacity, dtype=torch.bool)
        inputs |= {"position_ids": self._ids(), "write_indices": self._new(2, dtype=torch.int64), "mask": mask}
        dynamic += [self.grid, self.rows, {0: self.grid[0], 2: self.grid[1]}]

        def run(x, key, value, *rest):
            tables, rest = (rest[:2], rest[2:]) if attention.rotary else ((None, None), rest)
            position_ids, write_indices, mask = rest
            past = Past((key, value), write_indices, kernels=OnnxKernels)
            y = layer(x, Context(position_ids, mask, *tables), past)
            return y, *past.tensors

        weights = self._weights(layer)
        graph = _trace(layer, run, weights, inputs, dynamic, ["y", "new_key", "new_value"])
        return _function(name, graph, list(weights))

    def head(self) -> Function:
        """Logits of the chosen positions only: [B, R, V]."""

        def run(x_BTD, logit_indices_BR):
            index_BRD = logit_indices_BR[..., None].expand(-1, -1, self.config.hidden_size)
            return self.model.head(x_BTD.gather(1, index_BRD))

        weights = self._weights(self.model.lm_head, "lm_head.")
        if self.model.norm is not None:
            weights |= self._weights(self.model.norm, "norm.")
        inputs = {"x": self._new(2, 3, self.config.hidden_size), "logit_indices": self._new(2, 2, dtype=torch.int64)}
        chosen = self.rows | {1: torch.export.Dim(POSITIONS)}
        graph = _trace(self.model, run, weights, inputs, [self.grid, chosen], ["logits"])
        return _tied_head(_function("Head", graph, list(weights)), self.config)


def _tied_head(head: Function, config: ModelConfig) -> Function:
    """With a tied head, read the embedding [V, D] as it lies: Gemm with transB, on two axes.

    A Transpose before a MatMul would be folded into a second copy of the matrix in memory.
    """
    if not config.tie_word_embeddings:
        return head
    proto = onnx.FunctionProto()
    proto.CopyFrom(head.proto)
    product = next(node for node in proto.node if "lm_head.weight" in node.input)
    rows, logits = product.input[0], product.output[0]
    constant = lambda name, values: helper.make_node("Constant", [], [name], value_ints=values)  # noqa: E731
    replacement = [
        constant("flat_shape", [-1, config.hidden_size]),
        helper.make_node("Reshape", [rows, "flat_shape"], ["flat_rows"]),
        helper.make_node("Gemm", ["flat_rows", "lm_head.weight"], ["flat_logits"], transB=1),
        helper.make_node("Shape", [rows], ["leading"], start=0, end=2),
        constant("vocabulary", [config.vocab_size]),
        helper.make_node("Concat", ["leading", "vocabulary"], ["full_shape"], axis=0),
        helper.make_node("Reshape", ["flat_logits", "full_shape"], [logits]),
    ]
    at = list(proto.node).index(product)
    nodes = [*proto.node[:at], *replacement, *proto.node[at + 1 :]]
    del proto.node[:]
    proto.node.extend(nodes)
    return Function(proto, head.weights, head.transposed - {"lm_head.weight"})


def windows(config: ModelConfig) -> list[int | None]:
    """The distinct sliding windows, one mask each."""
    return list(dict.fromkeys(block.self_attn.sliding_window for block in config.decoder.layers))


def trace(config: ModelConfig, dtype: torch.dtype, capacity: int) -> Functions:
    """Trace the model's parts. Raises: ExportError for a part that cannot be exported."""
    check_exportable(config)
    tracer = _Tracer(config, dtype, capacity)
    blocks = {kind: tracer.block(kind, f"Block{number}") for number, kind in enumerate(kinds(config))}
    return Functions(tracer.stem(), blocks, tracer.head())
