"""Running a build with ONNX Runtime on a CPU. Past and present are one buffer, or it copies the cache every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from export.build import Build
from export.files import ExportError
from export.fused import check_in_order
from export.graph import every_state
from export.runtimes import check_fits
from export.widened import widened


def usable_cores() -> int:
    """Cores that this process may run on; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# A transposed weight is read as it lies (FusedMatMul); folding would first make another copy of it.
SETTINGS = {"providers": ["CPUExecutionProvider"], "disabled_optimizers": ["ConstantFolding"]}
INPUTS = ("input_ids", "position_ids", "write_indices", "logit_indices")


def open_session(path: Path, build: Build, threads: int | None = None, exact: bool = False):
    """A session of one of a build's graphs.

    Args:
        threads: default one for each core. exact: activations are not rounded to multiply them with grouped integers.
    Raises: ExportError for a graph that is refused.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise ExportError('onnxruntime: not installed; pip install "archcalc[export]"') from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or usable_cores()
    options.log_severity_level = 3
    level = "1" if exact else "4"  # of products with grouped int8 and int4 weights: in fp32, or in 8-bit integers
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(build.folder))
    try:
        if build.precision.activations == "bf16":  # there are no such products on a CPU
            return ort.InferenceSession(widened(path), options, providers=SETTINGS["providers"])
        return ort.InferenceSession(path, options, **SETTINGS)
    except Exception as error:  # the library's own exceptions derive from Exception alone
        raise ExportError(f"{path}: ONNX Runtime refuses it: {str(error)[:300]}") from None


def ort_value(array: np.ndarray):
    """An OrtValue that is the array's memory, in any format of ours; it must not outlive the array."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, np_dtype_to_tensor_dtype(array.dtype))


class OnnxRuntimeEngine:
    """A graph of a build in a session.

    Args:
        capacity: which of the build's graphs. threads, exact: of `open_session`.
    """

    name = "onnxruntime"

    def __init__(self, build: Build, capacity: int, threads: int | None = None, exact: bool = False):
        self.build, self.capacity, self.exact = build, capacity, exact
        self.session = open_session(build.graph(capacity), build, threads, exact)
        self.caches = every_state(build.config, capacity)

    def new_cache(self, batch: int) -> list[np.ndarray]:
        """Zeroed keys and values, [B, K, C, H] a tensor.

        The zeros are written: pages that nobody wrote are one and the same, and read faster than a cache in use.
        """
        return [np.full((batch, *state.shape), 0, self.build.precision.numpy) for state in self.caches]

    def cache_bytes(self, cache: list[np.ndarray]) -> int:
        return sum(array.nbytes for array in cache)

    def cache_arrays(self, cache: list[np.ndarray]) -> list[np.ndarray]:
        """The tensors' contents, in fp32, for comparison."""
        return [array.astype(np.float32) for array in cache]

    value = staticmethod(ort_value)

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list[np.ndarray]) -> BoundPass:
        """`run` for passes of one size over one cache, with everything allocated before the first of them."""
        return BoundPass(self, batch, tokens, logit_positions, cache)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list[np.ndarray]) -> np.ndarray:
        """One pass; writes the T tokens into `cache` and returns logits [B, R, V] in fp32.

        Raises: ConfigError if a row's tokens would not fit into the cache.
        """
        bound = self.bind(*input_ids.shape, logit_indices.shape[1], cache)
        return bound(input_ids, position_ids, write_indices, logit_indices)

    def prepare(self, batch: int, tokens: int, start: int) -> Callable[[], None]:
        """A function that runs one bound pass: `tokens` random ids a row at positions from `start`, last logits."""
        return self._random_pass(batch, tokens, start)

    def _random_pass(self, batch: int, tokens: int, start: int, *source) -> Callable[[], None]:
        """`prepare`. Args: source: what `bind` takes beside the cache."""
        ids = np.random.default_rng(0).integers(0, self.build.config.vocab_size, (batch, tokens))
        positions = np.tile(np.arange(start, start + tokens), (batch, 1))
        bound = self.bind(batch, tokens, 1, self.new_cache(batch), *source)
        bound.write(ids, positions, positions[:, 0], tokens - 1)
        return bound.run


class BoundPass:
    """A pass of one size over one cache: a call writes its integers where the session reads them, and copies nothing.

    Args:
        cache: of `engine.new_cache(batch)`. Past and present are one buffer, the arrays' own.
        source: what else the graph reads, the same in every call: what an encoder made.
    """

    def __init__(
        self, engine: OnnxRuntimeEngine, batch: int, tokens: int, logit_positions: int, cache: list, source=None
    ):
        self._session, self._capacity, self._tokens = engine.session, engine.capacity, tokens
        self._fused = engine.build.manifest["target"] == "onnxruntime"
        shapes = ((batch, tokens), (batch, tokens), (batch,), (batch, logit_positions))
        self._inputs = [np.zeros(shape, np.int64) for shape in shapes]
        vocabulary = engine.build.config.vocab_size
        self._logits = np.zeros((batch, logit_positions, vocabulary), engine.build.precision.numpy)
        self._kept = cache, source  # the binding does not keep them alive
        self._binding = self._session.io_binding()
        for name, array in zip(INPUTS, self._inputs, strict=True):
            self._binding.bind_ortvalue_input(name, engine.value(array))
        for name, array in (source or {}).items():
            self._binding.bind_ortvalue_input(name, engine.value(array))
        for state, array in zip(engine.caches, cache, strict=True):
            self._binding.bind_ortvalue_input(state.past, engine.value(array))
            self._binding.bind_ortvalue_output(state.present, engine.value(array))
        self._binding.bind_ortvalue_output("logits", engine.value(self._logits))

    def write(self, input_ids, position_ids, write_indices, logit_indices) -> None:
        """Set the inputs of the next run. Raises: ConfigError if a row's tokens would not fit into the cache."""
        check_fits(write_indices, self._tokens, self._capacity)
        if self._fused:
            check_in_order(position_ids, write_indices)
        for array, value in zip(self._inputs, (input_ids, position_ids, write_indices, logit_indices), strict=True):
            array[...] = value

    def run(self) -> None:
        """The bare pass."""
        self._session.run_with_iobinding(self._binding)

    def __call__(self, input_ids, position_ids, write_indices, logit_indices) -> np.ndarray:
        """`write` and `run`; logits [B, R, V] in fp32, which the next call may overwrite."""
        self.write(input_ids, position_ids, write_indices, logit_indices)
        self.run()
        return self._logits.astype(np.float32, copy=False)
