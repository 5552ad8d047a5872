"""Running builds with an encoder with ONNX Runtime on a CPU: the encoder once a source, the decoder once a token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from archcalc.config import ModelConfig
from archcalc.errors import ConfigError
from export.build import Build
from export.encoder import inputs, outputs
from export.runtimes.onnxruntime_ import BoundPass, OnnxRuntimeEngine, open_session, ort_value
from export.tracing import BATCH, SOURCE

Source = dict[str, np.ndarray]  # what a decoder reads of its sources, by the names of its graph's inputs


class EncoderEngine:
    """The encoder's graph of a build in a session. Args: capacity: None. threads: default one for each core."""

    name = "onnxruntime"

    def __init__(self, build: Build, capacity: int | None = None, threads: int | None = None):
        self.build, self.capacity = build, capacity
        self.session = open_session(build.encoder, build, threads)

    def run(self, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None = None) -> Source:
        """The graph's outputs by name, in the build's format.

        Args:
            source: token ids [B, X]; of a model that listens, frames [B, F, z].
            source_mask: [B, X], False where a token is padding.
            type_ids: [B, X], for a model with types; None: all 0.
        Raises: ConfigError for a source of another shape, an unknown id, or more tokens than there are positions.
        """
        config, precision = self.build.config, self.build.precision
        types = {} if type_ids is None else {"token_type_ids": type_ids}
        arrays = _inputs(config, precision, source, source_mask, types)
        sizes = {BATCH: len(source_mask), SOURCE: source_mask.shape[1]}
        shapes = {name: [sizes.get(axis, axis) for axis in axes] for name, axes in outputs(config).items()}
        made = {name: np.zeros(shape, precision.numpy) for name, shape in shapes.items()}
        binding = self.session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, ort_value(array))
        for name, array in made.items():
            binding.bind_ortvalue_output(name, ort_value(array))
        self.session.run_with_iobinding(binding)
        return made


def _inputs(config: ModelConfig, precision, source, source_mask, types: Source) -> Source:
    """The graph's inputs, checked: a runtime would read past the end of a table, or fail in many words."""
    first, batch, tokens = "input_features" if config.frontend else "input_ids", *source_mask.shape
    given, found = {first: source, "source_mask": source_mask} | types, {}
    for name, (_, axes) in inputs(config, precision.onnx).items():
        shape = tuple({BATCH: batch, SOURCE: tokens}.get(axis, axis) for axis in axes)
        array = given.pop(name, None)
        array = np.zeros(shape, np.int64) if array is None else array
        if array.shape != shape:
            raise ConfigError(f"{name}: shape {list(array.shape)}, not {list(shape)}; give one row a source")
        kind = {"input_features": precision.numpy, "source_mask": np.bool_}.get(name, np.int64)
        found[name] = np.ascontiguousarray(array, dtype=kind)
    if given:
        raise ConfigError(f"{', '.join(given)}: the model has no such input; drop it")
    limit = config.max_source_positions or config.max_position_embeddings
    if tokens > limit:
        raise ConfigError(f"source: {tokens} tokens, the model has positions for {limit}; give fewer")
    for name, most in (("input_ids", config.vocab_size), ("token_type_ids", config.embedding.type_vocab_size)):
        if name in found and not ((found[name] >= 0) & (found[name] < most)).all():
            raise ConfigError(f"{name}: not all from 0 to {most - 1}; is this the model's tokenizer?")
    return found


class EncoderDecoderEngine(OnnxRuntimeEngine):
    """Both graphs of a build in a session each.

    Args:
        capacity: which of the build's decoder graphs. threads: default one for each core that this process may use.
    """

    def __init__(self, build: Build, capacity: int, threads: int | None = None):
        super().__init__(build, capacity, threads)
        self.encoder = EncoderEngine(build, threads=threads)

    def encode(self, source: np.ndarray, source_mask: np.ndarray) -> Source:
        """Run the encoder: each layer's cross keys and values [B, K, X, H], and the mask; arguments as its `run`."""
        return self.encoder.run(source, source_mask) | {"source_mask": np.ascontiguousarray(source_mask, np.bool_)}

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list, source: Source) -> BoundPass:
        """As `OnnxRuntimeEngine.bind`. Args: source: of `encode`. Raises: ConfigError if its rows are not `batch`."""
        rows = len(source["source_mask"])
        if rows != batch:
            raise ConfigError(f"batch={batch}: there are {rows} sources; give one a target")
        return BoundPass(self, batch, tokens, logit_positions, cache, source)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list, source: Source) -> np.ndarray:
        """As `OnnxRuntimeEngine.run`. Args: source: of `encode`, never computed again."""
        bound = self.bind(*input_ids.shape, logit_indices.shape[1], cache, source)
        return bound(input_ids, position_ids, write_indices, logit_indices)

    def prepare(self, batch: int, tokens: int, start: int) -> Callable[[], None]:
        raise ConfigError(f"{self.build.config.name}: passes with an encoder are not timed yet; choose a model without")

    def after(self, source: Source) -> AfterSource:
        """The engine of what follows these sources."""
        return AfterSource(self, source)


class AfterSource:
    """An engine that has read its sources, and continues one target a source: the interface of `OnnxRuntimeEngine`."""

    def __init__(self, engine: EncoderDecoderEngine, source: Source):
        self._engine, self._source = engine, source
        self.build, self.capacity, self.caches = engine.build, engine.capacity, engine.caches
        self.new_cache, self.cache_arrays = engine.new_cache, engine.cache_arrays

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list) -> BoundPass:
        return self._engine.bind(batch, tokens, logit_positions, cache, self._source)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list) -> np.ndarray:
        return self._engine.run(input_ids, position_ids, write_indices, logit_indices, cache, self._source)
