"""What `export verify` compares of a model with an encoder: what becomes of sources, and of targets after them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from archcalc.config import ModelConfig
from archcalc.errors import ArchcalcError
from export.build import Build
from export.encoder import has_types, output
from export.graph import cross_tensors
from export.tolerance import Tolerance
from export.verify import CaseResult, EngineFailed, called, compare_case
from export.verify_cases import PROMPT, Case
from models import EncoderDecoder, EncoderOnly
from models.cache import Cache, CrossCache

LONGEST = 512  # tokens of a source at most: logits of a longer one, times a vocabulary, would not fit into memory


class Source(NamedTuple):
    """Sources of a batch: token ids [B, X] or frames [B, F, z], what is no padding [B, X], and types [B, X] or None."""

    source: np.ndarray
    mask_BX: np.ndarray
    types_BX: np.ndarray | None

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if array is None else torch.from_numpy(array) for array in self)


def source_of(config: ModelConfig, lengths: tuple[int, ...], padded_to: int, in_front: bool) -> Source:
    """Random sources; in the padding too, for a graph that reads it must not get away with it."""
    random, shape = np.random.default_rng([padded_to, len(lengths)]), (len(lengths), padded_to)
    places_X, lengths_B1 = np.arange(padded_to), np.array(lengths)[:, None]
    mask_BX = places_X >= padded_to - lengths_B1 if in_front else places_X < lengths_B1
    types_BX = random.integers(0, config.embedding.type_vocab_size, shape) if has_types(config) else None
    if frontend := config.frontend:
        frames_BFz = random.normal(size=(len(lengths), 2 * padded_to, frontend.num_mel_bins)).astype(np.float32)
        return Source(frames_BFz, mask_BX, types_BX)
    return Source(random.integers(0, config.vocab_size, shape), mask_BX, types_BX)


def _longest(config: ModelConfig) -> int:
    """Tokens of the longest source to compare: all positions, if they are not too many."""
    if config.frontend:
        return config.frontend.tokens
    return min(LONGEST, config.max_source_positions or config.max_position_embeddings)


def _unequal(count: int, longest: int) -> tuple[int, ...]:
    return tuple(max(1, longest * length // PROMPT[0]) for length in PROMPT[:count])


def encoder_cases(config: ModelConfig) -> list[Case]:
    """The table of cases for an encoder alone."""
    most = _longest(config)
    short = min(PROMPT[0], most)
    return [
        Case("one text", (short,), short, False, 0),
        Case("unequal texts, padded behind", _unequal(3, short), short, False, 0),
        Case("unequal texts, padded in front", _unequal(3, short), short, True, 0),
        Case("all positions", (most,), most, False, 0),
    ]


@torch.no_grad()
def encoder_output(case: Case, build: Build, engine, model: EncoderOnly, bound: Tolerance) -> CaseResult:
    """Compare what the head makes of every token that is no padding."""
    found, source = CaseResult(case, bound), source_of(build.config, case.lengths, case.slots, case.in_front)
    want, name = model(*source.tensors).numpy(), output(build.config)[0]
    try:
        got = called(engine.run, *source)[name].astype(np.float32)
        _check_shape(name, got, want)
    except ArchcalcError as error:
        found.stopped = str(error)
        return found
    kept = source.mask_BX if want.ndim == 3 else np.ones(len(want), bool)
    errors = bound.errors(got[kept], want[kept])
    found.logits, row = float(errors.max()), np.argwhere(kept)[errors.max(-1).argmax()][0]
    found.logits_at = f"{name}, row {row}"
    return found


def after_source(case: Case, build: Build, engine, model: EncoderDecoder, bound: Tolerance) -> CaseResult:
    """Compare every layer's cross keys and values, and then the case's passes after them, as without an encoder.

    The source of the case that fills the cache is as long as the model allows; the others are short and unequal. What
    is found in cross keys and values counts as the cache's: it is kept from one pass to the next, too.
    """
    config, batch = build.config, len(case.lengths)
    longest = _longest(config)
    slots = longest if config.frontend or case.slots == engine.capacity else min(PROMPT[0], longest)
    source = source_of(config, _unequal(batch, slots), slots, case.in_front)
    with torch.no_grad():
        cross = model.encode(*source.tensors[:2])
    try:
        theirs = called(engine.encode, *source[:2])
        error, where = _cross_error(config, engine.source_arrays(theirs), cross, source.mask_BX, bound)
    except ArchcalcError as problem:
        return CaseResult(case, bound, stopped=str(problem))
    found = compare_case(case, build, engine.after(theirs), _After(model, cross), bound)
    if error > bound.limit or error > found.cache:  # the cache is spoilt by it, not the other way round
        found.cache, found.cache_at = max(error, found.cache), where
    return found


def _cross_error(config: ModelConfig, theirs, cross: CrossCache, mask_BX, bound: Tolerance) -> tuple[float, str]:
    """The largest error of the keys and values of tokens that are no padding, and where it is."""
    ours = [tensor.numpy() for layer in cross.layers for tensor in layer]
    worst, where = 0.0, ""
    for name, want in zip(cross_tensors(config), ours, strict=True):
        got = theirs[name]
        _check_shape(name, got, want)
        real = mask_BX[:, None, :, None]
        errors = bound.errors(np.where(real, got, 0), np.where(real, want, 0))
        if float(errors.max()) >= worst:
            row, _, token, _ = np.unravel_index(errors.argmax(), errors.shape)
            worst, where = float(errors.max()), f"{name}, row {row}, source token {token}"
    return worst, where


def _check_shape(name: str, got: np.ndarray, want: np.ndarray) -> None:
    if got.shape != want.shape:
        raise EngineFailed(f"{name} has shape {got.shape}, not {want.shape}")


class _After:
    """An encoder-decoder that has read its sources: from then on it is called like a decoder alone."""

    def __init__(self, model: EncoderDecoder, cross: CrossCache):
        self._model, self._cross, self.head = model, cross, model.head

    def trunk(self, input_ids_BT, position_ids_BT=None, cache: Cache | None = None) -> torch.Tensor:
        return self._model.trunk(input_ids_BT, self._cross, cache, position_ids_BT)
