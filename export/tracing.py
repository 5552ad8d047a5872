"""A method of a PyTorch module as an ONNX function that takes its weights as inputs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx
import torch
from onnx import helper
from torch import nn

from export.onnx_kernels import OPSET

DOMAIN = "archcalc"
# Symbolic axes, the same in every graph: sequences, tokens of this pass, those that get logits, tokens of the source.
BATCH, TOKENS, POSITIONS, SOURCE = "batch", "tokens", "logit_positions", "source_tokens"


@dataclass(frozen=True)
class Function:
    """A traced part. `weights` are those of its inputs that are weights, by their names in the module."""

    proto: onnx.FunctionProto
    weights: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.proto.name


class Symbols(dict):
    """The symbolic axes of one trace: `symbols[BATCH]` is the same dimension wherever it is used."""

    def __missing__(self, name: str) -> torch.export.Dim:
        self[name] = torch.export.Dim(name)
        return self[name]


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


@contextlib.contextmanager
def _quiet():
    """Silence the exporter's notes about packages that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def trace_function(
    name: str,
    module: nn.Module,
    method: Callable,
    inputs: dict[str, tuple[torch.Tensor, dict[int, str]]],
    outputs: list[str],
    weights: Iterable[str] | None = None,
) -> Function:
    """`method(*inputs)` as a function of those inputs and of the module's weights that it reads.

    Args:
        inputs: an example of each, never read, so that it may lie on the meta device, and its symbolic axes.
        outputs: names of what the method returns, in order.
        weights: names of the tensors in `module` that may be read; None for all of them.
    """
    tensors = {
        n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if weights is None or n in weights
    }
    examples = [torch.empty(t.shape, dtype=t.dtype) if t.is_meta else t for t in tensors.values()]
    symbols = Symbols()
    shapes = [{axis: symbols[symbol] for axis, symbol in axes.items()} or None for _, axes in inputs.values()]
    torch.compiler.reset()  # what it remembers of a scan at another precision makes the next trace of it a wrong one
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Part(module, method, [f"part.{n}" for n in tensors]),
            (tuple(example for example, _ in inputs.values()), examples),
            dynamo=True,
            opset_version=OPSET,
            input_names=[*inputs, *tensors],
            output_names=outputs,
            dynamic_shapes=(tuple(shapes), [None] * len(tensors)),
            verbose=False,
        )
    return _function(name, program.model_proto.graph, set(tensors))


def _function(name: str, graph: onnx.GraphProto, weights: set[str]) -> Function:
    """A graph as a function, with the nodes that it needs and the inputs that it reads."""
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _strip(copy)
        nodes.append(copy)
    imports = [helper.make_opsetid("", OPSET)]
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    proto = helper.make_function(DOMAIN, name, inputs, outputs, nodes, imports)
    return pruned(Function(proto, tuple(i for i in inputs if i in weights)), outputs)


def _strip(node: onnx.NodeProto) -> None:
    """Clear notes, which name files of the machine, and the axes of this trace in subgraphs; in place."""
    node.ClearField("metadata_props")
    node.ClearField("doc_string")
    for graph in (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH):
        graph.ClearField("value_info")
        graph.ClearField("metadata_props")
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.ClearField("shape")
            value.ClearField("metadata_props")
        for inner in graph.node:
            _strip(inner)


def remade(
    function: Function,
    nodes: list[onnx.NodeProto],
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    weights: Iterable[str] | None = None,
    domain: str | None = None,
) -> Function:
    """The function with other nodes and, where they are given, other inputs, outputs and weights.

    Args:
        domain: that operators are of now, too; in its version 1.
    """
    old = function.proto
    inputs, outputs = (list(b if a is None else a) for a, b in ((inputs, old.input), (outputs, old.output)))
    versions = {one.domain: one.version for one in old.opset_import} | ({domain: 1} if domain else {})
    imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
    proto = helper.make_function(old.domain, old.name, inputs, outputs, nodes, imports)
    return Function(proto, function.weights if weights is None else tuple(weights))


def pruned(function: Function, outputs: list[str]) -> Function:
    """The function with these outputs alone, without the nodes and inputs that they do not need."""
    needed, nodes = set(outputs), []
    for node in reversed(function.proto.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_read(node))
    inputs = [name for name in function.proto.input if name in needed]
    weights = [name for name in function.weights if name in needed]
    return remade(function, nodes[::-1], inputs=inputs, outputs=outputs, weights=weights)


def _read(node: onnx.NodeProto) -> set[str]:
    """The tensors that a node reads, those that its subgraphs take from around them too."""
    found = set(node.input)
    for graph in (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH):
        found.update(tensor for inner in graph.node for tensor in _read(inner))
        found.update(output.name for output in graph.output)
    return found
