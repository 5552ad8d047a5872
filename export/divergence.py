"""The first layer at which a graph and PyTorch part: the outputs of the stem and of every block, side by side.

One run exposes all of them; there is no bisection. They are B·T·D·L numbers where the weights are about 12·D²·L, so
B·T/(12·D) of those: some per cent for a thousand tokens. Bisection would open the graph log2(L) times, and needs an
error that stays beyond the tolerance once it is there; but relative to a residual stream that grows with depth it
shrinks again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from export.build import Build
from export.files import ExportError
from export.tolerance import Tolerance
from export.tracing import BATCH, POSITIONS, TOKENS
from export.verify_cases import Pass, reference_pass
from models import DecoderOnly
from models.cache import Cache

EXPOSED = "exposed."  # before the name of a value that becomes an output


@dataclass(frozen=True)
class Divergence:
    """The part that parts from PyTorch first, and each part's error up to the logits in the same pass.

    Args:
        first: `stem`, `layers.i` or `head`; empty where nothing could be seen, or all agrees when it is run again.
    """

    first: str
    text: str
    errors: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Exposed(Build):
    """The same build with a graph that has more outputs."""

    path: Path

    def graph(self, capacity: int) -> Path:
        return self.path


def first_divergence(build: Build, engine, model: DecoderOnly, passes: list[Pass], bound: Tolerance) -> Divergence:
    """Run the passes again on both sides, and compare layer by layer in the last of them.

    Args:
        engine: what disagreed; only ONNX Runtime's shows what happens between blocks.
    """
    if engine.name != "onnxruntime":
        return Divergence("", f"not available for this backend ({engine.name})")
    names = ["stem", *[f"layers.{i}" for i in range(len(model.layers))], "head"]
    try:
        got = _engine_outputs(build, engine, len(model.layers), passes)
    except (ExportError, OSError) as error:
        return Divergence("", f"not available: {error}")
    last = passes[-1]
    kept = [last.real_BT] * (len(names) - 1) + [last.seen_BR]
    want = _reference_outputs(build, engine.capacity, model, passes)
    pairs = zip(got, want, kept, strict=True)
    errors = [float(bound.errors(mine[keep], other[keep]).max()) for mine, other, keep in pairs]
    return _concluded(dict(zip(names, errors, strict=True)), bound.limit)


def _concluded(errors: dict[str, float], limit: float) -> Divergence:
    """The first part beyond the limit, with the one before it."""
    names = list(errors)
    first = next((name for name in names if not errors[name] <= limit), "")
    if not first:
        most = max(errors.values())
        text = f"none: every layer agrees when run again (at most {most:.2g} of {limit:g}); "
        return Divergence("", text + "the cache, the engine or its inputs are at fault", errors)
    text = f"{first} ({errors[first]:.2g} of {limit:g})"
    if first != names[0]:
        before = names[names.index(first) - 1]
        text += f"; {before} still agrees ({errors[before]:.2g})"
    return Divergence(first, text, errors)


@contextlib.contextmanager
def _exposed(build: Build, capacity: int, values: list[tuple[str, list]]) -> Iterator[Build]:
    """The build with a graph that has these values, of these shapes, as outputs too: in fp32, the name after `EXPOSED`.

    Raises: ExportError for a graph without such a value.
    """
    graph = onnx.load(build.graph(capacity), load_external_data=False)
    made = {name for node in graph.graph.node for name in node.output}
    for value, shape in values:
        if value not in made:
            raise ExportError(f"{build.graph(capacity)}: has no value {value} between its blocks")
        name = EXPOSED + value
        graph.graph.node.append(helper.make_node("Cast", [value], [name], name=name, to=TensorProto.FLOAT))
        graph.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    # Beside the original, for that is where a graph's weights lie.
    handle, path = tempfile.mkstemp(prefix=".exposed-", suffix=".onnx", dir=build.folder)
    os.close(handle)
    try:
        onnx.save_model(graph, path)
        yield _Exposed(**vars(build), path=Path(path))
    finally:
        Path(path).unlink(missing_ok=True)


def _engine_outputs(build: Build, like, layers: int, passes: list[Pass]) -> list[np.ndarray]:
    """What goes into each block and out of the last one, [B, T, D], and the logits [B, R, V], of the last pass.

    Args:
        like: the engine that disagreed.
    """
    from export.runtimes.onnxruntime_ import INPUTS, OnnxRuntimeEngine

    values = [(f"x.{index}", [BATCH, TOKENS, build.config.hidden_size]) for index in range(layers + 1)]
    values.append(("logits", [BATCH, POSITIONS, build.config.vocab_size]))
    with _exposed(build, like.capacity, values) as exposed:
        engine = OnnxRuntimeEngine(exposed, like.capacity, exact=like.exact)
    *before, last = passes
    cache = engine.new_cache(len(last.input_ids))
    for one in before:
        engine.run(*one.inputs, cache)
    binding = engine.session.io_binding()
    for name, array in zip(INPUTS, last.inputs, strict=True):
        binding.bind_cpu_input(name, np.ascontiguousarray(array, dtype=np.int64))
    for state, array in zip(engine.caches, cache, strict=True):
        binding.bind_ortvalue_input(state.past, engine.value(array))
        binding.bind_ortvalue_output(state.present, engine.value(array))
    for value, _ in values:
        binding.bind_output(EXPOSED + value)
    engine.session.run_with_iobinding(binding)
    return [value.numpy() for value in binding.get_outputs()[len(cache) :]]


@torch.no_grad()
def _reference_outputs(build: Build, capacity: int, model: DecoderOnly, passes: list[Pass]) -> list[np.ndarray]:
    """The same of PyTorch."""
    cache = Cache.empty(build.config, len(passes[0].input_ids), capacity)
    for one in passes[:-1]:
        reference_pass(model, one, cache)
    seen: list[np.ndarray] = []
    keep = lambda _, inputs, output: seen.append(output.numpy())  # noqa: E731
    handles = [model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy()))]
    handles += [layer.register_forward_hook(keep) for layer in model.layers]
    try:
        logits = reference_pass(model, passes[-1], cache)
    finally:
        for handle in handles:
            handle.remove()
    return [*seen, logits]
