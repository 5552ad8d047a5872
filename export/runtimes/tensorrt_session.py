"""Opening a TensorRT plan: checked against the build, its weights put back, ready to run on a stream of the GPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from archcalc.errors import ConfigError
from archcalc.hf import read_json
from export.build import Build
from export.engine_caches import save_runtime_cache, use_runtime_cache
from export.engine_from_onnx import EngineInfo, engine_path, for_parser, origin
from export.files import ExportError
from export.tensorrt_package import Gpu, Log, load_tensorrt, package_name
from export.tracing import BATCH, POSITIONS, SOURCE, TOKENS

AGAIN = "build the engine again"
log = logging.getLogger(__name__)


def read_engine(build: Build, capacity: int | None, trt: ModuleType, device: Gpu) -> tuple[bytes, EngineInfo]:
    """The plan's bytes, checked: TensorRT never gets a plan of another build, package, version or GPU.

    Raises: ExportError saying what differs and to build the engine again.
    """
    path = engine_path(build, capacity, device.capability)
    if not path.is_file():
        raise ExportError(f"{path}: missing, no engine for this GPU ({device.name}, {device.capability}); {AGAIN}")
    sidecar = path.with_suffix(".json")
    if not sidecar.is_file():
        raise ExportError(f"{sidecar}: missing, so nothing says what the plan beside it is; {AGAIN}")
    try:
        facts = read_json(str(sidecar))
    except ConfigError as error:
        raise ExportError(f"{error}; {AGAIN}") from None
    wanted = json.loads(json.dumps(origin(build, capacity, trt))) | {"compute_capability": device.capability}
    if trt.__name__ == "tensorrt":  # its plans are for one model of GPU, those of TensorRT-RTX for a capability
        wanted["gpu"] = device.name
    for key, value in wanted.items():
        if facts.get(key) != value:
            raise ExportError(f"{path}: built for {key}={facts.get(key)!r}, here it is {value!r}; {AGAIN}")
    _check_profiles(build, capacity, sidecar, facts.get("profiles"))
    plan = path.read_bytes()
    if hashlib.sha256(plan).hexdigest() != facts.get("plan_sha256"):
        raise ExportError(f"{path}: not the plan that was built (SHA-256 differs); {AGAIN}")
    return plan, EngineInfo(path, facts)


def _check_profiles(build: Build, capacity: int | None, sidecar: Path, found: Any) -> None:
    """Raise ExportError unless there are the profiles of such a plan, with three sizes for each free axis."""
    source = {SOURCE} if build.config.encoder and not build.config.frontend else set()
    names, axes = ({"source"}, set()) if capacity is None else ({"decode", "prefill"}, {TOKENS, POSITIONS})
    axes |= {BATCH} | source
    good = isinstance(found, dict) and found.keys() == names and all(_has_ranges(found[one], axes) for one in names)
    if not good:
        wanted = f"least, tuned and most {', '.join(sorted(axes))} of {', '.join(sorted(names))}"
        raise ExportError(f"{sidecar}: profiles={str(found)[:80]}: not {wanted}; {AGAIN}")


def _has_ranges(profile: Any, axes: set[str]) -> bool:
    if not isinstance(profile, dict) or profile.keys() != axes:
        return False
    return all(type(sizes) is list and [type(size) for size in sizes] == [int] * 3 for sizes in profile.values())


class CudaStream:
    """The stream that tensors are made, passes run and events are recorded on."""

    device = "cuda"

    def __init__(self):
        self._stream = torch.cuda.Stream()
        self.handle: int = self._stream.cuda_stream
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def current(self) -> contextlib.AbstractContextManager:
        return torch.cuda.stream(self._stream)

    def timed(self, enqueue: Callable[[int], bool]) -> tuple[bool, float]:
        """(what `enqueue` answered, seconds of GPU time until its work was done)."""
        self._start.record(self._stream)
        accepted = enqueue(self.handle)
        self._end.record(self._stream)
        self._end.synchronize()
        return accepted, self._start.elapsed_time(self._end) / 1000  # from milliseconds

    def captured(self, enqueue: Callable[[int], bool]) -> Callable[[], None] | None:
        """A function that launches what `enqueue` would enqueue, as one CUDA graph; None if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile: TensorRT's own do.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                accepted = enqueue(self.handle)
        except RuntimeError as error:
            log.warning("CUDA graph: not captured, %s; passes are enqueued one by one", " ".join(str(error).split()))
            return None
        return graph.replay if accepted else None


@dataclass(frozen=True)
class Session:
    """An opened plan.

    Args:
        owners: what its execution context refers to: they must live as long.
        captures: passes that are repeated are to be captured as CUDA graphs here; the package does not do it.
        close: called when the session is no longer used.
    """

    info: EngineInfo
    context: Any
    stream: CudaStream
    owners: tuple = ()
    captures: bool = False
    close: Callable[[], None] = lambda: None


def open_session(build: Build, capacity: int | None, device: Gpu, cuda_graph: bool = True) -> Session:
    """Open the build's plan for this GPU.

    Args:
        cuda_graph: launch a pass that is repeated as one CUDA graph.
    Raises: ExportError without a plan made for it, or without a torch that can use it.
    """
    trt = load_tensorrt()
    plan, info = read_engine(build, capacity, trt, device)
    if not torch.cuda.is_available():
        raise ExportError(f"torch {torch.__version__}: cannot use {device.name}; install the torch for its CUDA driver")
    torch.cuda.init()  # the context that a runtime cache is checked against
    said = Log(trt)
    runtime = trt.Runtime(said.sink)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise ExportError(f"{info.path}: cannot be opened, {said.reason()}; {AGAIN}")
    if info.facts.get("weights_stripped"):
        refit(trt, engine, said, build.graph(capacity))
    context, owners, close = _context(trt, engine, info.path, cuda_graph)
    if context is None:
        raise ExportError(f"{info.path}: cannot be opened, {said.reason()}; {AGAIN}")
    owners = (runtime, engine, said, *owners)
    return Session(info, context, CudaStream(), owners, cuda_graph and not hasattr(trt, "CudaGraphStrategy"), close)


def refit(trt: ModuleType, engine, said: Log, graph: Path) -> None:
    """Put the graph's weights into an engine whose plan has none. Raises: ExportError if some are missing."""
    refitter = trt.Refitter(engine, said.sink)
    parser = trt.OnnxParserRefitter(refitter, said.sink)
    if not parser.refit_from_bytes(for_parser(graph), str(graph)) or not refitter.refit_cuda_engine():
        why = parser.get_error(0).desc() if parser.num_errors else said.reason()
        raise ExportError(
            f"{graph}: {package_name(trt)} cannot put its weights back, {why}; build without stripWeights"
        )


def _context(trt: ModuleType, engine, path: Path, cuda_graph: bool) -> tuple[Any, tuple, Callable[[], None]]:
    """(execution context, what it refers to, what to do at the end).

    TensorRT-RTX compiles kernels for each shape that it meets, and keeps them in a file beside the plan. It does so
    before the first pass of a shape, not behind the passes that follow, so that what is timed does not change.
    """
    if not hasattr(trt, "IRuntimeCache"):
        return engine.create_execution_context(), (), lambda: None
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    strategies = trt.CudaGraphStrategy
    config.cuda_graph_strategy = strategies.WHOLE_GRAPH_CAPTURE if cuda_graph else strategies.DISABLED
    kernels = path.with_suffix(".kernels")
    cache = use_runtime_cache(config, kernels)
    return engine.create_execution_context(config), (config, cache), lambda: save_runtime_cache(cache, kernels)
