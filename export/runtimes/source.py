"""What an encoder reads and what it hands to a decoder, in every runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from archcalc.config import ModelConfig
from archcalc.errors import ConfigError
from export.build import Build
from export.encoder import inputs, outputs
from export.tracing import BATCH, SOURCE

Source = dict[str, Any]  # arrays, or tensors on a GPU: what a decoder reads of its sources, by its inputs' names


def longest_source(config: ModelConfig) -> int:
    """Tokens that an encoder has positions for."""
    return config.max_source_positions or config.max_position_embeddings


def random_source(build: Build, batch: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [B, X], or of a model that listens frames [B, F, z], and the mask [B, X] of sources without padding."""
    random, mask = np.random.default_rng(0), np.ones((batch, tokens), np.bool_)
    if frontend := build.config.frontend:
        return random.normal(size=(batch, 2 * tokens, frontend.num_mel_bins)).astype(np.float32), mask
    return random.integers(0, build.config.vocab_size, (batch, tokens)), mask


def encoder_inputs(build: Build, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None) -> Source:
    """The inputs of an encoder's graph by name, checked: a runtime would read past the end of a table.

    Raises: ConfigError for a source of another shape, an unknown id, or more tokens than there are positions.
    """
    config, precision = build.config, build.precision
    types = {} if type_ids is None else {"token_type_ids": type_ids}
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
    limit = longest_source(config)
    if tokens > limit:
        raise ConfigError(f"source: {tokens} tokens, the model has positions for {limit}; give fewer")
    for name, most in (("input_ids", config.vocab_size), ("token_type_ids", config.embedding.type_vocab_size)):
        if name in found and not ((found[name] >= 0) & (found[name] < most)).all():
            raise ConfigError(f"{name}: not all from 0 to {most - 1}; is this the model's tokenizer?")
    return found


def encoder_shapes(config: ModelConfig, source_mask: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The shape of each output of an encoder's graph over sources with this mask [B, X]."""
    sizes = {BATCH: len(source_mask), SOURCE: source_mask.shape[1]}
    return {name: tuple(sizes.get(axis, axis) for axis in axes) for name, axes in outputs(config).items()}


def check_rows(source: Source, batch: int) -> None:
    """Raise ConfigError unless there is a source for each of `batch` targets."""
    rows = len(source["source_mask"])
    if rows != batch:
        raise ConfigError(f"batch={batch}: there are {rows} sources; give one a target")


class AfterSource:
    """An engine that has read its sources, and continues one target a source as one without an encoder would."""

    def __init__(self, engine, source: Source):
        self._engine, self._source = engine, source
        self.build, self.capacity, self.caches = engine.build, engine.capacity, engine.caches
        self.new_cache, self.cache_arrays = engine.new_cache, engine.cache_arrays

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list) -> Callable:
        return self._engine.bind(batch, tokens, logit_positions, cache, self._source)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list) -> np.ndarray:
        return self._engine.run(input_ids, position_ids, write_indices, logit_indices, cache, self._source)
