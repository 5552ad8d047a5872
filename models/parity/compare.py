"""A transformers model and ours with the same weights on the same sequences: how far are the logits apart?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import torch

from archcalc.hf import config_from_keys
from models.cache import Cache
from models.language_model import EncoderOnly, left_padded
from models.parity.checkpoints import tiny
from models.weights import assign

LENGTHS = (11, 7, 4)  # of three sequences; the last one is all padding in the first chunk
SOURCES = (9, 6, 4)
FIRST = 6  # columns of the first chunk
Logits = list[torch.Tensor]  # [T, V] of each sequence, without padding


def sequences(vocabulary: int, lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    """Random token ids, none of them a special one."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def errors(logits: Logits, expected: Logits) -> list[float]:
    """Of each token the largest difference of a logit, relative to the largest logit of all."""
    scale = max(float(one.abs().max()) for one in expected)
    pairs = zip(logits, expected, strict=True)
    return [float(e) / scale for row, one in pairs for e in (row.double() - one.double()).abs().amax(-1)]


def worst(logits: Logits, expected: Logits) -> float:
    """The largest error of a token; infinite where there is no number."""
    return max(error if error == error else float("inf") for error in errors(logits, expected))


def typical(logits: Logits, expected: Logits) -> float:
    """The median error of a token: one that changes its expert by rounding does not speak for the others."""
    return median(error if error == error else float("inf") for error in errors(logits, expected))


class Pair:
    """Both models with the same weights in one dtype, and three sequences (and sources) for both."""

    def __init__(self, theirs: torch.nn.Module, keys: dict, dtype=torch.float32):
        self.config, self.dtype = config_from_keys(keys), dtype
        self.theirs = theirs.to(dtype)
        state = theirs.state_dict()
        self.ours = assign(self.config, ((name, lambda t=tensor: t) for name, tensor in state.items()), dtype=dtype)
        self.rows = sequences(self.config.vocab_size, LENGTHS, 1)
        self.source = self._source()

    def _source(self):
        if frontend := self.config.frontend:
            shape = len(LENGTHS), 2 * frontend.tokens, frontend.num_mel_bins
            return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(self.dtype)
        return sequences(self.config.vocab_size, SOURCES, 2) if self.config.encoder and self.config.decoder else None

    @torch.no_grad()
    def expected(self) -> Logits:
        """By transformers, which sees each sequence alone and whole: padding cannot harm it."""
        return [self.theirs(**self._inputs(number)).logits[0] for number in range(len(self.rows))]

    def _inputs(self, number: int) -> dict:
        ids_1T = torch.tensor([self.rows[number]])
        if self.source is None:
            return {"input_ids": ids_1T}
        if self.config.frontend:
            return {"input_features": self.source[number][None].transpose(1, 2), "decoder_input_ids": ids_1T}
        return {"input_ids": torch.tensor([self.source[number]]), "decoder_input_ids": ids_1T}

    def _run(self) -> Callable:
        """(ids, positions, cache) -> logits of our model, the source already read."""
        if self.source is None:
            return self.ours
        if self.config.frontend:
            cross = self.ours.encode(self.source)
        else:
            source_BX, positions_BX = left_padded(self.source)
            cross = self.ours.encode(source_BX, positions_BX >= 0)
        return lambda ids_BT, positions_BT, cache=None: self.ours.decode(ids_BT, cross, cache, positions_BT)

    def _without_padding(self, logits_BTV: torch.Tensor) -> Logits:
        return [row[-length:] for row, length in zip(logits_BTV, LENGTHS, strict=True)]

    @torch.no_grad()
    def full(self) -> Logits:
        """Ours, of the padded batch in one pass."""
        ids_BT, positions_BT = left_padded(self.rows)
        if isinstance(self.ours, EncoderOnly):
            return self._without_padding(self.ours(ids_BT, positions_BT >= 0))
        return self._without_padding(self._run()(ids_BT, positions_BT))

    @torch.no_grad()
    def in_parts(self, *sizes: int, static: bool = False) -> Logits:
        """Ours, of the padded batch, so many columns at a time, from a cache."""
        ids_BT, positions_BT = left_padded(self.rows)
        run, capacity = self._run(), max(LENGTHS) + 2 if static else None
        cache = Cache.empty(self.config, len(self.rows), capacity, self.dtype)
        parts = zip(ids_BT.split(sizes, 1), positions_BT.split(sizes, 1), strict=True)
        return self._without_padding(torch.cat([run(ids, positions, cache) for ids, positions in parts], dim=1))

    def ways(self) -> Iterator[tuple[str, Logits]]:
        """Ours by each way to compute them; an encoder has one."""
        yield "full", self.full()
        if isinstance(self.ours, EncoderOnly):
            return
        rest = max(LENGTHS) - FIRST
        for kind, static in (("static", True), ("growing", False)):
            yield f"decode, {kind}", self.in_parts(FIRST, *(1,) * rest, static=static)
            yield f"chunks, {kind}", self.in_parts(FIRST, rest, static=static)


def in_half(name: str, dtype: torch.dtype) -> tuple[float, float]:
    """(theirs, ours): the typical error against transformers in fp32, with weights that are numbers of the dtype.

    Of ours that of the worst way; caches are of the dtype, too.
    """
    theirs, keys = tiny(name)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.to(dtype).float()
    exact = Pair(theirs, keys).expected()
    pair = Pair(theirs, keys, dtype)
    return typical(pair.expected(), exact), max(typical(logits, exact) for _, logits in pair.ways())
