"""A TensorRT engine from an exported graph: built for a named GPU, with or without one in the machine.

One adapter serves `tensorrt` (10 and later) and `tensorrt_rtx`, which have the same API. A plan `engine-C-sm_NN.plan`,
of an encoder `engine-encoder-sm_NN.plan`, lies in the build folder beside a sidecar `.json` that says what it was built
from; `runtimes.tensorrt_` opens it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.inliner

from archcalc.files import replaced_file
from export.build import Build
from export.engine_caches import save_timing_cache, timing_cache_path, use_timing_cache
from export.engine_layers import allow_decomposition, attentions, check_layers, layers_by_type
from export.engine_profiles import Range, Shapes, add_profile, input_axes, profiles, source_profiles
from export.files import ExportError, sha256
from export.graph import WEIGHTS
from export.tensorrt_package import Gpu, Log, gpu, load_tensorrt, package_name, target_of
from export.tracing import SOURCE

LONGEST_SOURCE = 512  # tokens, by default


def engine_path(build: Build, capacity: int | None, capability: str) -> Path:
    """Where the plan for this cache (tokens a sequence) and GPU (sm_NN) lies; its sidecar ends in .json.

    Args:
        capacity: None for the encoder's, here and everywhere.
    """
    return build.folder / f"engine-{capacity or 'encoder'}-{capability}.plan"


def engine_capacities(build: Build) -> tuple[int | None, ...]:
    """One for each plan of a build: its encoder's, and of each capacity of a decoder's cache."""
    return *((None,) if build.config.encoder else ()), *build.capacities


@dataclass(frozen=True)
class EngineInfo:
    """A plan file and what its sidecar says of it."""

    path: Path
    facts: dict[str, Any]

    def describe(self) -> str:
        """A line for the file, its size, and what it was built with, and one for each thing to know about it."""
        size = self.facts["plan_bytes"] / 10**6
        lines = [
            "{}: {:.1f} MB, by {package} {version} for {compute_capability} in {seconds:.1f} s".format(
                self.path, size, **self.facts
            )
        ]
        if self.facts["weights_stripped"]:
            lines.append(f"  Its weights are taken from {WEIGHTS} when it is opened.")
        if reasons := self.facts["attention_without_kernel"]:
            lines.append(f"  Attention runs as products and a softmax: there is no kernel for {', '.join(reasons)}.")
        return "\n".join([*lines, *(f"  {note}" for note in self.facts["notes"])])


@dataclass(frozen=True)
class EngineSettings:
    """How a plan is built; the names are trtexec's.

    Args:
        compute_capability: sm_NN; by default this machine's GPU, or sm_89 without one.
        max_batch: sequences. max_prompt: tokens a pass; by default as many as the cache holds.
        max_source: tokens of a source; by default all that the model has positions for, up to 512.
        shapes: of a prompt's inputs, instead of these three: see `engine_profiles.profiles`. An encoder with a decoder
            is built for the sources that the decoder reads.
        workspace_bytes, builder_optimization_level (0, a fast build, to 5): by default the package's own choice.
        strip_weights: leave the weights out of the plan; they are put back from the build folder when it is opened.
        timing_cache: file of kernel timings; by default in the build folder. TensorRT-RTX has none.
        decompose_attention: let all attention, or none, run as products; by default what has no kernel.
    """

    compute_capability: str | None = None
    max_batch: int = 4
    max_prompt: int | None = None
    max_source: int | None = None
    shapes: Shapes | None = None
    workspace_bytes: int | None = None
    builder_optimization_level: int | None = None
    strip_weights: bool = False
    timing_cache: Path | None = None
    decompose_attention: bool | None = None


def build_engine(build: Build, capacity: int | None, **settings: Any) -> EngineInfo:
    """Build the plan of the graph with this capacity (tokens a sequence), or of the encoder, into the build folder.

    Args:
        settings: fields of `EngineSettings`.
    Raises: ExportError or ConfigError if it cannot be parsed or built; nothing is written then.
    """
    _check_known(build, capacity)
    wanted, trt, device = EngineSettings(**settings), load_tensorrt(), gpu()
    graph, log, started = build.graph(capacity), Log(trt), time.perf_counter()
    capability, target = target_of(trt, wanted.compute_capability, device)
    timings = timing_cache_path(trt, wanted.timing_cache, build.folder, capability)
    ranges = _ranges(build, capacity, wanted)
    builder = trt.Builder(log.sink)
    network, parser = _parse(trt, log, builder, graph)
    layers = layers_by_type(network)
    check_layers(build.config, layers, "decoder" if capacity else "encoder")
    facts = origin(build, capacity, trt) | {
        "compute_capability": capability,
        "gpu": device.name if device and device.capability == capability else None,
        "profiles": ranges,
        "weights_stripped": wanted.strip_weights,
        "attention_without_kernel": _decompose(trt, network, capability, wanted.decompose_attention),
        "layers": dict(sorted(layers.items())),
    }
    config = _builder_config(trt, builder, target, wanted)
    notes = [use_timing_cache(config, timings, log)] if timings else []
    for each in ranges.values():
        add_profile(builder, network, config, each)
    plan = builder.build_serialized_network(network, config)
    del parser  # it owns the weights that the network refers to: not before the build
    if plan is None:
        raise _failure(trt, log, graph, wanted, device)
    if timings:
        notes.append(save_timing_cache(config, timings))
    facts |= {"notes": [note for note in notes if note], "warnings": log.warnings()}
    facts["seconds"] = round(time.perf_counter() - started, 3)
    return _write(engine_path(build, capacity, capability), plan, facts)


def _check_known(build: Build, capacity: int | None) -> None:
    """Raise ExportError for a graph that is not in the build, or has operators of another runtime."""
    if capacity not in engine_capacities(build):
        known = ", ".join(map(str, engine_capacities(build)))
        raise ExportError(f"capacity={capacity}: not in the build; use one of {known}")
    scheme, target = build.precision.quantization, build.manifest["target"]
    if target != "any" or (scheme and scheme.dynamic):
        wrong = f"target={target}" if target != "any" else f"precision={build.precision.name}"
        raise ExportError(
            f"{wrong}: has operators that TensorRT does not know; build with another, or use ONNX Runtime"
        )


def _ranges(build: Build, capacity: int | None, wanted: EngineSettings) -> dict[str, dict[str, Range]]:
    """The profiles of a graph. Raises: ExportError or ConfigError for sizes that it does not allow."""
    config = build.config
    axes = input_axes(build.graph(capacity or next(iter(build.capacities), None)))
    source = None
    if config.encoder and not config.frontend:
        limit = config.max_source_positions or config.max_position_embeddings
        source = min(LONGEST_SOURCE, limit) if wanted.max_source is None else wanted.max_source
    if capacity is None:
        found = source_profiles(wanted.max_batch, source, wanted.shapes, axes)
    else:
        longest = capacity if wanted.max_prompt is None else wanted.max_prompt
        found = profiles(capacity, wanted.max_batch, longest, wanted.shapes, axes, source)
    for profile in found.values():
        if source and profile[SOURCE][2] > limit:
            raise ExportError(
                f"{SOURCE}={profile[SOURCE][2]}: the model has positions for {limit}; give at most that many"
            )
    return found


def _parse(trt: ModuleType, log: Log, builder, graph: Path):
    """(network, parser): the parser owns the weights that the network refers to, so it must outlive the build."""
    strongly_typed = trt.NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED")  # 11 knows nothing else
    network = builder.create_network(0 if strongly_typed is None else 1 << int(strongly_typed))
    parser = trt.OnnxParser(network, log.sink)
    if not parser.parse(for_parser(graph), str(graph)):
        error = parser.get_error(0) if parser.num_errors else None
        where = f"node {error.node_name()!r} ({error.node_operator()}): {error.desc()}" if error else log.reason()
        raise ExportError(f"{graph}: {package_name(trt)} cannot parse it, {where}; use ONNX Runtime")
    return network, parser


def for_parser(graph: Path) -> bytes:
    """What is parsed of a graph's file; a refit needs the very same, for layers are named after what stands in it.

    Raises: ExportError for functions that call themselves: the parser would do so until the process dies.
    """
    model = onnx.load(graph, load_external_data=False)
    calls = {function.name: {node.op_type for node in _every_node(function.node)} for function in model.functions}
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        names = ", ".join(sorted(set(error.args[1])))
        raise ExportError(f"{graph}: {names}: functions that call themselves; build it again") from None
    if any("DequantizeLinear" in called for called in calls.values()):
        model = onnx.inliner.inline_local_functions(model)  # the parser calls these layers alike in every call
    return model.SerializeToString()


def _every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _every_node(graph.node)


def _decompose(trt: ModuleType, network, capability: str, decompose: bool | None) -> list[str]:
    """Let attention run as products where it is asked for or has no kernel; returns why."""
    if decompose is None:
        return allow_decomposition(trt, network, capability)
    for attention in attentions(trt, network):
        attention.decomposable = decompose
    return ["any (as it was asked for)"] if decompose else []


def _builder_config(trt: ModuleType, builder, target, wanted: EngineSettings):
    """The builder's configuration: the GPU to build for, its limits, and true fp32."""
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default, and rounds the factors of fp32 products to 11 bits
    if target is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(target, 0)
    if wanted.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, wanted.workspace_bytes)
    if wanted.builder_optimization_level is not None:
        config.builder_optimization_level = wanted.builder_optimization_level
    if wanted.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)  # with REFIT_IDENTICAL: the same weights are put back
    return config


def _failure(trt: ModuleType, log: Log, graph: Path, wanted: EngineSettings, device: Gpu | None) -> ExportError:
    if wanted.strip_weights and device is None:
        return ExportError(
            f"stripWeights=True: {package_name(trt)} cannot strip a plan without a GPU ({log.reason()}); "
            "build where there is one, or leave it out"
        )
    return ExportError(f"{graph}: {package_name(trt)} cannot build it; {log.reason()}")


def origin(build: Build, capacity: int | None, trt: ModuleType) -> dict[str, Any]:
    """What an engine depends on; it is opened only where each of these is the same."""
    return {
        "package": trt.__name__,
        "version": trt.__version__,
        "config": build.config.keys,
        "precision": build.precision.name,
        "capacity": capacity,
        "graph_sha256": sha256(build.graph(capacity)),
        "weights_sha256": " ".join(build.data.values()),
    }


def _write(path: Path, plan, facts: dict[str, Any]) -> EngineInfo:
    """Plan first, sidecar second: a kill between them leaves a pair that does not agree, and is refused.

    Raises: ExportError where they cannot be written.
    """
    try:
        with replaced_file(path) as temporary:
            temporary.write_bytes(plan)
            facts |= {"plan_bytes": temporary.stat().st_size, "plan_sha256": sha256(temporary)}
        with replaced_file(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        raise ExportError(
            f"{path}: cannot be written, {error.strerror}; make room or copy the build folder to where there is"
        ) from None
    return EngineInfo(path, json.loads(json.dumps(facts)))
