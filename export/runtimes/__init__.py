"""One file a backend, each with a class of the same interface, imported only when it is used.

engine.new_cache(batch)                                        keys and values of `batch` empty sequences
engine.run(input_ids, position_ids, write_indices, logit_indices, cache) -> logits [B, R, V], fp32 numpy
engine.bind(batch, tokens, logit_positions, cache) -> Callable: `run` without its last argument, for many passes of
                                                               one size; the logits are valid until the next one
engine.prepare(batch, tokens, start) -> Callable[[], None]     one pass with everything bound, for timing
engine.cache_bytes(cache) -> int                               bytes of the bound keys and values
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from archcalc.errors import ConfigError, one_of

if TYPE_CHECKING:
    from export.build import Build

BACKENDS = {"onnxruntime": "ONNX Runtime on a CPU", "tensorrt": "TensorRT on a GPU"}


def check_backend(backend: str) -> None:
    """Raise ConfigError for an unknown backend, ExportError for TensorRT without a GPU."""
    one_of("backend", backend, BACKENDS)
    if backend == "tensorrt":
        from export.runtimes.tensorrt_ import this_gpu

        this_gpu()


def engines(build: Build, backend: str, compile_first: bool = False, cuda_graph: bool = True) -> Callable[[int], Any]:
    """A function from a capacity (tokens) to the engine of that graph, each opened once.

    Args:
        compile_first: build the TensorRT plan too, for this machine's GPU and batches up to 8.
        cuda_graph: TensorRT launches a pass that is repeated as one CUDA graph.
    Raises: ConfigError for an unknown backend, ExportError for TensorRT without a GPU, or with an encoder.
    """
    check_backend(backend)
    if build.config.encoder:
        if backend != "onnxruntime":
            from export.expressible import check_decoder_alone

            check_decoder_alone(build.config, f"backend={backend}")
        from export.runtimes.encoder import EncoderDecoderEngine, EncoderEngine

        kind = EncoderDecoderEngine if build.config.decoder else EncoderEngine
        return functools.cache(functools.partial(kind, build))
    if backend == "onnxruntime":
        from export.runtimes.onnxruntime_ import OnnxRuntimeEngine

        return functools.cache(functools.partial(OnnxRuntimeEngine, build))
    from export.engine_from_onnx import build_engine
    from export.runtimes.tensorrt_ import TensorRTEngine

    def opened(capacity: int) -> TensorRTEngine:
        if compile_first:
            build_engine(build, capacity, max_batch=8)
        return TensorRTEngine(build, capacity, cuda_graph=cuda_graph)

    return functools.cache(opened)


def check_fits(write_indices: np.ndarray, tokens: int, capacity: int) -> None:
    """Raise ConfigError if `tokens` from any of these slots on would run over the cache."""
    end = int(write_indices.max()) + tokens
    if end > capacity or int(write_indices.min()) < 0:
        raise ConfigError(
            f"context={end}: the cache holds capacity={capacity} tokens; use a graph of a larger capacity"
        )
