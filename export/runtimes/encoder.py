"""Running builds with an encoder with ONNX Runtime on a CPU: the encoder once a source, the decoder once a token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from export.build import Build
from export.runtimes.onnxruntime_ import BoundPass, OnnxRuntimeEngine, open_session, ort_value
from export.runtimes.source import AfterSource, Source, check_rows, encoder_inputs, encoder_shapes, random_source


class EncoderEngine:
    """The encoder's graph of a build in a session. Args: capacity: None. threads: default one for each core."""

    name = "onnxruntime"

    def __init__(self, build: Build, capacity: int | None = None, threads: int | None = None, exact: bool = False):
        self.build, self.capacity = build, capacity
        self.session = open_session(build.encoder, build, threads, exact)

    def run(self, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None = None) -> Source:
        """The graph's outputs by name, in the build's format.

        Args:
            source: token ids [B, X]; of a model that listens, frames [B, F, z].
            source_mask: [B, X], False where a token is padding.
            type_ids: [B, X], for a model with types; None: all 0.
        Raises: ConfigError for a source of another shape, an unknown id, or more tokens than there are positions.
        """
        bound = BoundSource(self, encoder_inputs(self.build, source, source_mask, type_ids), source_mask)
        bound.run()
        return bound.made

    def prepare(self, batch: int, tokens: int) -> Callable[[], None]:
        """A function that runs one bound pass over random sources of so many tokens."""
        source, mask = random_source(self.build, batch, tokens)
        return BoundSource(self, encoder_inputs(self.build, source, mask, None), mask).run


class BoundSource:
    """A pass of an encoder over sources, with everything allocated. `made`: its outputs, once it has run.

    Args: arrays: of `encoder_inputs`.
    """

    def __init__(self, engine: EncoderEngine, arrays: Source, source_mask: np.ndarray):
        self._session, self._kept = engine.session, arrays  # the binding does not keep them alive
        shapes = encoder_shapes(engine.build.config, source_mask)
        self.made: Source = {name: np.zeros(shape, engine.build.precision.numpy) for name, shape in shapes.items()}
        self._binding = self._session.io_binding()
        for name, array in arrays.items():
            self._binding.bind_ortvalue_input(name, ort_value(array))
        for name, array in self.made.items():
            self._binding.bind_ortvalue_output(name, ort_value(array))

    def run(self) -> None:
        """The bare pass."""
        self._session.run_with_iobinding(self._binding)


class EncoderDecoderEngine(OnnxRuntimeEngine):
    """Both graphs of a build in a session each.

    Args:
        capacity: which of the build's decoder graphs. threads: default one for each core that this process may use.
    """

    def __init__(self, build: Build, capacity: int, threads: int | None = None, exact: bool = False):
        super().__init__(build, capacity, threads, exact)
        self.encoder = EncoderEngine(build, threads=threads, exact=exact)

    def encode(self, source: np.ndarray, source_mask: np.ndarray) -> Source:
        """Run the encoder: each layer's cross keys and values [B, K, X, H], and the mask; arguments as its `run`."""
        return self.encoder.run(source, source_mask) | {"source_mask": np.ascontiguousarray(source_mask, np.bool_)}

    def source_arrays(self, source: Source) -> Source:
        """The keys and values in fp32, for comparison."""
        return {name: array.astype(np.float32) for name, array in source.items() if name != "source_mask"}

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list, source: Source) -> BoundPass:
        """As `OnnxRuntimeEngine.bind`. Args: source: of `encode`. Raises: ConfigError if its rows are not `batch`."""
        check_rows(source, batch)
        return BoundPass(self, batch, tokens, logit_positions, cache, source)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list, source: Source) -> np.ndarray:
        """As `OnnxRuntimeEngine.run`. Args: source: of `encode`, never computed again."""
        bound = self.bind(*input_ids.shape, logit_indices.shape[1], cache, source)
        return bound(input_ids, position_ids, write_indices, logit_indices)

    def prepare(self, batch: int, tokens: int, start: int, source: int) -> Callable[[], None]:
        """As `OnnxRuntimeEngine.prepare`, after random sources of `source` tokens, which are read here."""
        return self._random_pass(batch, tokens, start, self.encode(*random_source(self.build, batch, source)))

    def after(self, source: Source) -> AfterSource:
        """The engine of what follows these sources."""
        return AfterSource(self, source)
