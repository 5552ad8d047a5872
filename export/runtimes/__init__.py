"""One file a backend, each with a class of the same interface, imported only when it is used.

engine.new_cache(batch)                                        keys and values of `batch` empty sequences
engine.run(input_ids, position_ids, write_indices, logit_indices, cache) -> logits [B, R, V], fp32 numpy
engine.bind(batch, tokens, logit_positions, cache) -> Callable: `run` without its last argument, for many passes of
                                                               one size; the logits are valid until the next one
engine.prepare(batch, tokens, start) -> Callable[[], None]     one pass with everything bound, for timing
engine.cache_bytes(cache) -> int                               bytes of the bound keys and values

With an encoder: source = engine.encode(source, source_mask) is what the decoder reads of sources, the last argument of
`run` and `bind`, and its length that of `prepare`; engine.after(source) is an engine of the interface above;
engine.encoder is that of the encoder's graph. An encoder alone has `run` and `prepare` only: see
`encoder.EncoderEngine`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from archcalc.errors import ConfigError, one_of

if TYPE_CHECKING:
    from archcalc.config import ModelConfig
    from export.build import Build

BACKENDS = {"onnxruntime": "ONNX Runtime on a CPU", "tensorrt": "TensorRT on a GPU"}


def check_backend(backend: str) -> None:
    """Raise ConfigError for an unknown backend, ExportError for TensorRT without a GPU."""
    one_of("backend", backend, BACKENDS)
    if backend == "tensorrt":
        from export.runtimes.tensorrt_ import this_gpu

        this_gpu()


def engines(
    build: Build, backend: str, compile_first: bool = False, cuda_graph: bool = True, exact: bool = False
) -> Callable[[int], Any]:
    """A function from a capacity (tokens) to the engine of that graph, each opened once.

    Args:
        compile_first: build the TensorRT plan too, for this machine's GPU and batches up to 8.
        cuda_graph: TensorRT launches a pass that is repeated as one CUDA graph.
        exact: ONNX Runtime does not round activations to multiply them with integers.
    Raises: ConfigError for an unknown backend, ExportError for TensorRT without a GPU.
    """
    check_backend(backend)
    if backend == "onnxruntime":
        return functools.cache(functools.partial(_onnxruntime_kind(build.config), build, exact=exact))
    from export.engine_from_onnx import build_engine

    kind = _tensorrt_kind(build.config)
    if compile_first and build.config.encoder:
        build_engine(build, None, max_batch=8)

    def opened(capacity: int | None) -> Any:
        if compile_first and capacity:
            build_engine(build, capacity, max_batch=8)
        return kind(build, capacity, cuda_graph=cuda_graph)

    return functools.cache(opened)


def _onnxruntime_kind(config: ModelConfig) -> type:
    if not config.encoder:
        from export.runtimes.onnxruntime_ import OnnxRuntimeEngine

        return OnnxRuntimeEngine
    from export.runtimes.encoder import EncoderDecoderEngine, EncoderEngine

    return EncoderDecoderEngine if config.decoder else EncoderEngine


def _tensorrt_kind(config: ModelConfig) -> type:
    if not config.encoder:
        from export.runtimes.tensorrt_ import TensorRTEngine

        return TensorRTEngine
    from export.runtimes.tensorrt_encoder import TensorRTEncoder, TensorRTEncoderDecoder

    return TensorRTEncoderDecoder if config.decoder else TensorRTEncoder


def check_fits(write_indices: np.ndarray, tokens: int, capacity: int) -> None:
    """Raise ConfigError if `tokens` from any of these slots on would run over the cache."""
    end = int(write_indices.max()) + tokens
    if end > capacity or int(write_indices.min()) < 0:
        raise ConfigError(
            f"context={end}: the cache holds capacity={capacity} tokens; use a graph of a larger capacity"
        )
