"""Running a TensorRT plan on a GPU. The cache is written in place: past and present are one buffer."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from export.build import Build
from export.engine_profiles import DECODE, PREFILL
from export.files import ExportError
from export.graph import every_state
from export.runtimes import check_fits
from export.runtimes.tensorrt_session import AGAIN, Session, open_session
from export.tensorrt_package import Gpu, gpu, load_tensorrt
from export.tracing import BATCH, POSITIONS, SOURCE, TOKENS

INPUTS = ("input_ids", "position_ids", "write_indices", "logit_indices")
RECURRENT = (".conv", ".state")  # what a recurrence keeps; everything else is slots of a cache
PROFILED_PASSES = 20


def this_gpu() -> Gpu:
    """The first GPU. Raises: ExportError without one."""
    device = gpu()
    if device is None:
        raise ExportError(
            "backend=tensorrt: no NVIDIA driver: build works here, running needs a GPU; "
            "copy the build folder to a machine with one, or use --backend onnxruntime"
        )
    return device


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass: its optimization profile, and the tensor of each input and output by name.

    Keys and values are one tensor before and after it. A recurrent state is read while it is written, so it has two,
    and goes from the second to the first at the end: `moved`.
    """

    profile: int
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    moved: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def fits(self, shape: tuple[int, int], positions: int, kept: list[torch.Tensor]) -> bool:
        """Is it over tokens [B, T], R logits a row, and these tensors: a cache, and what it reads of sources?"""
        own = list(self.inputs.values())[len(INPUTS) :]
        sizes = tuple(self.inputs["input_ids"].shape), self.inputs["logit_indices"].shape[1]
        return sizes == (shape, positions) and all(a is b for a, b in zip(own, kept, strict=True))


def layer_profiler(trt: ModuleType):
    """What TensorRT tells each layer's time to; `seconds` is the sum of each layer's by its name."""

    class LayerTimes(trt.IProfiler):
        def __init__(self):
            trt.IProfiler.__init__(self)
            self.seconds: defaultdict[str, float] = defaultdict(float)

        def report_layer_time(self, layer_name, ms):
            self.seconds[layer_name] += ms / 1000

    return LayerTimes()


class Plan:
    """An opened plan on the first GPU: what its context is bound to. `seconds` is the GPU time of the last pass.

    Args:
        capacity: which of the build's plans; None for the encoder's. session: an opened one; by default the plan for
            this GPU is opened.
        cuda_graph: a pass that is repeated is launched as one CUDA graph.
    """

    name = "tensorrt"

    def __init__(self, build: Build, capacity: int | None, session: Session | None = None, cuda_graph: bool = True):
        session = session or open_session(build, capacity, this_gpu(), cuda_graph)
        self.build, self.capacity, self.session, self.seconds = build, capacity, session, float("nan")
        self._captures = session.captures
        self._bound: Pass | None = None  # what the context is set to run
        self._runs = 0  # of it, since it was bound
        self._replay: Callable[[], None] | None = None  # it as a CUDA graph
        weakref.finalize(self, session.close)

    def _check_sizes(self, name: str, sizes: dict[str, int]) -> None:
        """Raise ExportError unless the profile of this name has these sizes of its axes."""
        for axis, (least, _, most) in self.session.info.facts["profiles"][name].items():
            if not least <= sizes[axis] <= most:
                raise ExportError(f"{axis}={sizes[axis]}: the engine was built for {least} to {most} ({name}); {AGAIN}")

    def _bind(self, bound: Pass) -> None:
        """Make the context run this pass; free if it was the last one to run."""
        if self._bound is bound:
            return
        # A CUDA graph refers to what the context is bound to: one that is bound to something else ends it.
        self._bound, self._replay, self._runs, context = None, None, 0, self.session.context
        if context.active_optimization_profile != bound.profile:
            context.set_optimization_profile_async(bound.profile, self.session.stream.handle)
        for name, tensor in bound.inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise ExportError(f"{self.session.info.path}: refuses {name} of shape {tuple(tensor.shape)}; {AGAIN}")
        for name, tensor in (bound.inputs | bound.outputs).items():
            context.set_tensor_address(name, tensor.data_ptr())
        self._bound = bound

    def _enqueue(self, handle: int) -> bool:
        """Start the bound pass on the stream; False if TensorRT refuses."""
        accepted = self.session.context.execute_async_v3(handle)
        for kept, new in self._bound.moved:
            kept.copy_(new)
        return accepted

    def _launch(self, handle: int) -> bool:
        """As `_enqueue`, by the CUDA graph if there is one."""
        if self._replay is None:
            return self._enqueue(handle)
        self._replay()
        return True

    def _execute(self, bound: Pass) -> None:
        with self.session.stream.current():
            self._bind(bound)
            if self._captures and self._runs == 1:  # the first run did what TensorRT defers until after a binding
                self._replay = self.session.stream.captured(self._enqueue)
                self._captures = self._replay is not None
            accepted, self.seconds = self.session.stream.timed(self._launch)
        self._runs += 1
        if not accepted:
            raise ExportError(f"{self.session.info.path}: the pass failed on the GPU; {AGAIN}")

    def layer_times(self, *sizes: int, passes: int = PROFILED_PASSES) -> dict[str, float]:
        """Mean seconds of each layer of a pass, by the engine's name of it, which may stand for many fused ones.

        The engine must have been opened with cuda_graph=False: a graph is one launch, without layers.

        Args:
            sizes: of the plan's `prepare`.
        """
        run = self.prepare(*sizes)
        run()
        times = layer_profiler(load_tensorrt())
        self.session.context.profiler = times
        for _ in range(passes):
            run()
        return {layer: seconds / passes for layer, seconds in times.seconds.items()}


class TensorRTEngine(Plan):
    """The plan of a decoder. Arguments are those of `Plan`."""

    def __init__(self, build: Build, capacity: int, session: Session | None = None, cuda_graph: bool = True):
        super().__init__(build, capacity, session, cuda_graph)
        self.caches = every_state(build.config, capacity)

    def new_cache(self, batch: int) -> list[torch.Tensor]:
        """Keys and values [B, K, C, H] a tensor; zeros, as a masked value is multiplied by 0 and must be finite."""
        place = {"dtype": self.build.precision.torch, "device": self.session.stream.device}
        with self.session.stream.current():
            return [torch.zeros(batch, *state.shape, **place) for state in self.caches]

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
        return self._run((input_ids, position_ids, write_indices, logit_indices), cache, {})

    def _run(self, arrays: tuple, cache: list[torch.Tensor], source: dict[str, torch.Tensor]) -> np.ndarray:
        """`run` over the arrays of `INPUTS`. Args: source: what else the graph reads, the same in every pass."""
        bound, kept = self._bound, [*cache, *source.values()]
        if bound is not None and bound.fits(arrays[0].shape, arrays[-1].shape[1], kept):
            self._refill(bound, arrays)
        else:
            bound = self._pass(arrays, cache, source)
        self._execute(bound)
        with self.session.stream.current():
            return bound.outputs["logits"].to("cpu", torch.float32, copy=True).numpy()  # the next pass writes there

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list[torch.Tensor]) -> Callable:
        """`run` over one cache. Passes of one size in a row are one bound pass, and so one CUDA graph."""
        return lambda *inputs: self.run(*inputs, cache)

    def prepare(self, batch: int, tokens: int, start: int) -> Callable[[], None]:
        """A function that runs one pass over random ids at positions from `start`, last logits, and waits for it.

        Inputs and cache are made once, so that calls time the pass alone.
        """
        return self._random_pass(batch, tokens, start, {})

    def _random_pass(self, batch: int, tokens: int, start: int, source: dict[str, torch.Tensor]) -> Callable[[], None]:
        """`prepare`. Args: source: of `_run`."""
        ids = np.random.default_rng(0).integers(0, self.build.config.vocab_size, (batch, tokens))
        positions = np.tile(np.arange(start, start + tokens), (batch, 1))
        last = np.full((batch, 1), tokens - 1)
        bound = self._pass((ids, positions, positions[:, 0], last), self.new_cache(batch), source)

        def run() -> None:
            if self._captures and self._bound is not bound:
                self._execute(bound)  # so that this call, a warm-up, makes the graph, and none that is measured does
            self._execute(bound)

        return run

    def _pass(self, arrays: tuple, cache: list[torch.Tensor], source: dict[str, torch.Tensor]) -> Pass:
        """The pass's tensors on the GPU. Keys and values are updated in place: a present tensor is its past one."""
        named = dict(zip(INPUTS, arrays, strict=True))
        (batch, tokens), positions = named["input_ids"].shape, named["logit_indices"].shape[1]
        profile, name = (DECODE, "decode") if tokens == 1 else (PREFILL, "prefill")
        sizes = {BATCH: batch, TOKENS: tokens, POSITIONS: positions}
        self._check_sizes(name, sizes | ({SOURCE: source["source_mask"].shape[1]} if source else {}))
        check_fits(named["write_indices"], tokens, self.capacity)  # the GPU would write past the end without a word
        device, shape, moved = self.session.stream.device, (batch, positions, self.build.config.vocab_size), []
        with self.session.stream.current():
            inputs = {name: torch.tensor(array, dtype=torch.int64, device=device) for name, array in named.items()}
            outputs = {"logits": torch.empty(shape, dtype=self.build.precision.torch, device=device)}
            for state, tensor in zip(self.caches, cache, strict=True):
                inputs[state.past] = outputs[state.present] = tensor
                if state.past.endswith(RECURRENT):
                    outputs[state.present] = torch.empty_like(tensor)
                    moved.append((tensor, outputs[state.present]))
        return Pass(profile, inputs | source, outputs, tuple(moved))

    def _refill(self, bound: Pass, arrays: tuple) -> None:
        """Write another pass's ids and indices into a bound one's tensors: nothing has to be bound again."""
        check_fits(arrays[INPUTS.index("write_indices")], bound.inputs["input_ids"].shape[1], self.capacity)
        with self.session.stream.current():
            for name, array in zip(INPUTS, arrays, strict=True):
                bound.inputs[name].copy_(torch.as_tensor(array, dtype=torch.int64))
