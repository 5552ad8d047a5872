"""Running a TensorRT plan on a GPU. The cache is written in place: past and present are one buffer."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from archcalc.errors import ConfigError
from archcalc.hf import read_json
from export.build import Build
from export.engine_from_onnx import DECODE, PREFILL, EngineInfo, Gpu, Log, engine_path, gpu, load_tensorrt, origin
from export.files import ExportError
from export.graph import cache_names
from export.onnx_from_torch import BATCH, POSITIONS, TOKENS
from export.runtimes import check_fits

AGAIN = "build the engine again"


def read_engine(build: Build, capacity: int, trt: ModuleType, device: Gpu) -> tuple[bytes, EngineInfo]:
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
    plan = path.read_bytes()
    if hashlib.sha256(plan).hexdigest() != facts.get("plan_sha256"):
        raise ExportError(f"{path}: not the plan that was built (SHA-256 differs); {AGAIN}")
    return plan, EngineInfo(path, facts)


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


@dataclass(frozen=True)
class Session:
    """An opened plan. `owners` are what its execution context refers to: they must live as long."""

    info: EngineInfo
    context: Any
    stream: CudaStream
    owners: tuple = ()


def this_gpu() -> Gpu:
    """The first GPU. Raises: ExportError without one."""
    device = gpu()
    if device is None:
        raise ExportError(
            "backend=tensorrt: no NVIDIA driver: build works here, running needs a GPU; "
            "copy the build folder to a machine with one, or use --backend onnxruntime"
        )
    return device


def open_session(build: Build, capacity: int) -> Session:
    """Open the build's plan for the first GPU. Raises: ExportError without a GPU, or a plan made for it."""
    device, trt = this_gpu(), load_tensorrt()
    plan, info = read_engine(build, capacity, trt, device)
    if not torch.cuda.is_available():
        raise ExportError(f"torch {torch.__version__}: cannot use {device.name}; install the torch for its CUDA driver")
    log = Log(trt)
    runtime = trt.Runtime(log.sink)
    engine = runtime.deserialize_cuda_engine(plan)
    context = engine.create_execution_context() if engine else None
    if context is None:
        raise ExportError(f"{info.path}: cannot be opened, {log.reason()}; {AGAIN}")
    return Session(info, context, CudaStream(), (runtime, engine, log))


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass: its optimization profile, and the tensor of each input and output by name."""

    profile: int
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]


class TensorRTEngine:
    """A plan of a build on the first GPU. `seconds` is the GPU time of the last pass, by CUDA events.

    Args:
        capacity: which of the build's plans. session: an opened one; by default the plan for this GPU is opened.
    """

    name = "tensorrt"

    def __init__(self, build: Build, capacity: int, session: Session | None = None):
        session = session or open_session(build, capacity)
        self.build, self.capacity, self.session = build, capacity, session
        self.caches, self.seconds = cache_names(build.config), float("nan")
        self._bound: Pass | None = None

    def new_cache(self, batch: int) -> list[torch.Tensor]:
        """Keys and values [B, K, C, H] a tensor; zeros, as a masked value is multiplied by 0 and must be finite."""
        place = {"dtype": self.build.precision.torch, "device": self.session.stream.device}
        with self.session.stream.current():
            return [torch.zeros(batch, heads, self.capacity, dim, **place) for _, _, (heads, dim) in self.caches]

    def cache_bytes(self, cache: list[torch.Tensor]) -> int:
        return sum(tensor.nbytes for tensor in cache)

    def cache_arrays(self, cache: list[torch.Tensor]) -> list[np.ndarray]:
        """The tensors' contents, in fp32, for comparison."""
        with self.session.stream.current():
            return [tensor.float().cpu().numpy() for tensor in cache]

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list[torch.Tensor]) -> np.ndarray:
        """One pass; writes the T tokens into `cache` and returns logits [B, R, V] in fp32.

        Args:
            input_ids, position_ids: [B, T], int64. write_indices: [B], each sequence's first slot to write.
            logit_indices: [B, R], which of the T tokens get logits. cache: from `new_cache(B)`.
        Raises: ExportError or ConfigError for sizes or slots that the engine was not built for.
        """
        bound = self._pass(input_ids, position_ids, write_indices, logit_indices, cache)
        self._execute(bound)
        with self.session.stream.current():
            return bound.outputs["logits"].float().cpu().numpy()

    def prepare(self, batch: int, tokens: int, start: int) -> Callable[[], None]:
        """A function that runs one pass over random ids at positions from `start`, last logits, and waits for it.

        Inputs and cache are made once, so that calls time the pass alone.
        """
        ids = np.random.default_rng(0).integers(0, self.build.config.vocab_size, (batch, tokens))
        positions = np.tile(np.arange(start, start + tokens), (batch, 1))
        last = np.full((batch, 1), tokens - 1)
        bound = self._pass(ids, positions, positions[:, 0], last, self.new_cache(batch))
        return lambda: self._execute(bound)

    def _profile(self, batch: int, tokens: int, positions: int) -> int:
        """The optimization profile of a pass. Raises: ExportError if none was built for these sizes."""
        index, name = (DECODE, "decode") if tokens == 1 else (PREFILL, "prefill")
        for axis, size in ((BATCH, batch), (TOKENS, tokens), (POSITIONS, positions)):
            least, _, most = self.session.info.facts["profiles"][name][axis]
            if not least <= size <= most:
                raise ExportError(f"{axis}={size}: the engine was built for {least} to {most} ({name}); {AGAIN}")
        return index

    def _pass(self, input_ids, position_ids, write_indices, logit_indices, cache: list[torch.Tensor]) -> Pass:
        """The pass's tensors on the GPU. A present tensor is its past one: the engine updates it in place."""
        (batch, tokens), positions = input_ids.shape, logit_indices.shape[1]
        profile = self._profile(batch, tokens, positions)
        check_fits(write_indices, tokens, self.capacity)  # the GPU would write past the end without a word
        arrays = (input_ids, position_ids, write_indices, logit_indices)
        names = ("input_ids", "position_ids", "write_indices", "logit_indices")
        device, shape = self.session.stream.device, (batch, positions, self.build.config.vocab_size)
        with self.session.stream.current():
            inputs = {n: torch.tensor(a, dtype=torch.int64, device=device) for n, a in zip(names, arrays, strict=True)}
            outputs = {"logits": torch.empty(shape, dtype=self.build.precision.torch, device=device)}
        for (past, present, _), tensor in zip(self.caches, cache, strict=True):
            inputs[past] = outputs[present] = tensor
        return Pass(profile, inputs, outputs)

    def _bind(self, bound: Pass) -> None:
        """Make the context run this pass; free if it was the last one to run."""
        if self._bound is bound:
            return
        self._bound, context = None, self.session.context
        if context.active_optimization_profile != bound.profile:
            context.set_optimization_profile_async(bound.profile, self.session.stream.handle)
        for name, tensor in bound.inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise ExportError(f"{self.session.info.path}: refuses {name} of shape {tuple(tensor.shape)}; {AGAIN}")
        for name, tensor in (bound.inputs | bound.outputs).items():
            context.set_tensor_address(name, tensor.data_ptr())
        self._bound = bound

    def _execute(self, bound: Pass) -> None:
        with self.session.stream.current():
            self._bind(bound)
            accepted, self.seconds = self.session.stream.timed(self.session.context.execute_async_v3)
        if not accepted:
            raise ExportError(f"{self.session.info.path}: the pass failed on the GPU; {AGAIN}")
