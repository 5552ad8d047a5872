"""Running the plans of a build with an encoder on a GPU: the encoder once a source, the decoder once a token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from export.build import Build
from export.runtimes.source import AfterSource, Source, check_rows, encoder_inputs, encoder_shapes, random_source
from export.runtimes.tensorrt_ import Pass, Plan, TensorRTEngine
from export.runtimes.tensorrt_session import Session
from export.tracing import BATCH, SOURCE


class TensorRTEncoder(Plan):
    """The plan of an encoder.

    Args:
        capacity: None. session: an opened plan; by default the one for this GPU is opened.
        cuda_graph: of no use here, for every source has tensors of its own.
    """

    def __init__(self, build: Build, capacity: None = None, session: Session | None = None, cuda_graph: bool = False):
        super().__init__(build, None, session, cuda_graph=False)

    def run(self, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None = None) -> Source:
        """As `export.runtimes.encoder.EncoderEngine.run`, in fp32."""
        made = self.tensors(source, source_mask, type_ids)
        with self.session.stream.current():
            return {name: tensor.float().cpu().numpy() for name, tensor in made.items() if name != "source_mask"}

    def tensors(self, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None = None) -> Source:
        """The graph's outputs and `source_mask` as tensors on the GPU, in the build's format; arguments as of `run`.

        Raises: ConfigError or ExportError for a source that the model does not know, or the engine was not built for.
        """
        bound = self._sources(source, source_mask, type_ids)
        self._execute(bound)
        return bound.outputs | {"source_mask": bound.inputs["source_mask"]}

    def prepare(self, batch: int, tokens: int) -> Callable[[], None]:
        """A function that runs one pass over random sources of so many tokens, and waits for it."""
        bound = self._sources(*random_source(self.build, batch, tokens), None)
        return lambda: self._execute(bound)

    def _sources(self, source: np.ndarray, source_mask: np.ndarray, type_ids: np.ndarray | None) -> Pass:
        """The pass's tensors on the GPU."""
        arrays = encoder_inputs(self.build, source, source_mask, type_ids)
        self._check_sizes("source", {BATCH: len(source_mask), SOURCE: source_mask.shape[1]})
        device, kind = self.session.stream.device, self.build.precision.torch
        with self.session.stream.current():
            given = {name: self._tensor(array) for name, array in arrays.items()}
            shapes = encoder_shapes(self.build.config, source_mask)
            made = {name: torch.empty(shape, dtype=kind, device=device) for name, shape in shapes.items()}
        return Pass(0, given, made, ())

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        device = self.session.stream.device
        if array.dtype.kind in "bi":
            return torch.tensor(array, device=device)
        # By fp32: torch does not know numpy arrays in bf16.
        return torch.tensor(array.astype(np.float32), dtype=self.build.precision.torch, device=device)


class TensorRTEncoderDecoder(TensorRTEngine):
    """Both plans of a build. Args: capacity, cuda_graph: of the decoder, as in `Plan`."""

    def __init__(
        self,
        build: Build,
        capacity: int,
        session: Session | None = None,
        cuda_graph: bool = True,
        encoder: TensorRTEncoder | None = None,
    ):
        super().__init__(build, capacity, session, cuda_graph)
        self.encoder = encoder or TensorRTEncoder(build)

    def encode(self, source: np.ndarray, source_mask: np.ndarray) -> Source:
        """Run the encoder: each layer's cross keys and values [B, K, X, H], and the mask, as tensors on the GPU."""
        return self.encoder.tensors(source, source_mask)

    def source_arrays(self, source: Source) -> Source:
        """The keys and values in fp32, for comparison."""
        with self.session.stream.current():
            return {n: tensor.float().cpu().numpy() for n, tensor in source.items() if n != "source_mask"}

    def bind(self, batch: int, tokens: int, logit_positions: int, cache: list, source: Source) -> Callable:
        """As `TensorRTEngine.bind`. Args: source: of `encode`. Raises: ConfigError if its rows are not `batch`."""
        check_rows(source, batch)
        return lambda *inputs: self.run(*inputs, cache, source)

    def run(self, input_ids, position_ids, write_indices, logit_indices, cache: list, source: Source) -> np.ndarray:
        """As `TensorRTEngine.run`. Args: source: of `encode`, never computed again."""
        check_rows(source, len(input_ids))
        return self._run((input_ids, position_ids, write_indices, logit_indices), cache, source)

    def prepare(self, batch: int, tokens: int, start: int, source: int) -> Callable[[], None]:
        """As `TensorRTEngine.prepare`, after random sources of `source` tokens, which are read here."""
        return self._random_pass(batch, tokens, start, self.encode(*random_source(self.build, batch, source)))

    def after(self, source: Source) -> AfterSource:
        """The engine of what follows these sources."""
        return AfterSource(self, source)
