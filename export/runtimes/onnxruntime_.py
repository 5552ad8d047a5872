"""Running a build with ONNX Runtime on a CPU. Past and present are one buffer, or it copies the cache every step."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from export.build import Build
from export.files import ExportError
from export.graph import every_state
from export.runtimes import check_fits


def usable_cores() -> int:
    """Cores that this process may run on; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# A transposed weight is read as it lies (FusedMatMul); folding would first make another copy of it.
SETTINGS = {"providers": ["CPUExecutionProvider"], "disabled_optimizers": ["ConstantFolding"]}


class OnnxRuntimeEngine:
    """A graph of a build in a session.

    Args:
        capacity: which of the build's graphs. threads: default one for each core that this process may use.
    """

    name = "onnxruntime"

    def __init__(self, build: Build, capacity: int, threads: int | None = None):
        try:
            import onnxruntime as ort
        except ImportError:
            raise ExportError('onnxruntime: not installed; pip install "archcalc[export]"') from None
        self._ort, self.build, self.capacity = ort, build, capacity
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or usable_cores()
        options.log_severity_level = 3
        # Grouped int8 and int4 weights: products in 8-bit integers, activations rounded as they come.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        try:
            self.session = ort.InferenceSession(build.graph(capacity), options, **SETTINGS)
        except Exception as error:  # the library's own exceptions derive from Exception alone
            raise ExportError(f"{build.graph(capacity)}: ONNX Runtime refuses it: {str(error)[:300]}") from None
        self.caches = every_state(build.config, capacity)

    def new_cache(self, batch: int) -> list:
        """Zeroed keys and values, [B, K, C, H] a tensor."""
        dtype = self.build.precision.numpy
        shapes = [(batch, *state.shape) for state in self.caches]
        return [self._ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype)) for shape in shapes]

    def cache_bytes(self, cache: list) -> int:
        return sum(value.tensor_size_in_bytes() for value in cache)

    def cache_arrays(self, cache: list) -> list[np.ndarray]:
        """The tensors' contents, in fp32, for comparison."""
        return [value.numpy().astype(np.float32) for value in cache]

    def _bind(self, inputs: dict[str, np.ndarray], cache: list):
        binding = self.session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for (past, present, _), value in zip(self.caches, cache, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        return binding

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list) -> np.ndarray:
        """One pass; writes the T tokens into `cache` and returns logits [B, R, V] in fp32.

        Raises: ConfigError if a row's tokens would not fit into the cache.
        """
        check_fits(write_indices, input_ids.shape[1], self.capacity)
        arrays = (input_ids, position_ids, write_indices, logit_indices)
        names = ("input_ids", "position_ids", "write_indices", "logit_indices")
        binding = self._bind({n: a.astype(np.int64) for n, a in zip(names, arrays, strict=True)}, cache)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy().astype(np.float32)

    def prepare(self, batch: int, tokens: int, start: int) -> Callable[[], None]:
        """A function that runs one bound pass: `tokens` random ids a row at positions from `start`, last logits."""
        check_fits(np.array([start]), tokens, self.capacity)
        ids = np.random.default_rng(0).integers(0, self.build.config.vocab_size, (batch, tokens))
        positions = np.tile(np.arange(start, start + tokens), (batch, 1))
        ends = np.full((batch, 1), tokens - 1)
        inputs = {
            "input_ids": ids,
            "position_ids": positions,
            "write_indices": positions[:, 0],
            "logit_indices": ends,
        }
        cache = self.new_cache(batch)
        binding = self._bind({name: array.astype(np.int64) for name, array in inputs.items()}, cache)
        dtype = self.build.precision.numpy
        logits = self._ort.OrtValue.ortvalue_from_numpy(np.zeros((batch, 1, self.build.config.vocab_size), dtype))
        binding.bind_ortvalue_output("logits", logits)
        return lambda: self.session.run_with_iobinding(binding)
