"""How well a model predicts a text."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy

from archcalc.errors import ArchcalcError
from models.language_model import DecoderOnly
from models.progress import progress

WINDOW = 2048
ROWS = 256  # logits of so many tokens at once: a vocabulary is large


@torch.no_grad()
def perplexity(model: DecoderOnly, ids: list[int], window: int | None = None) -> float:
    """exp of the mean of -ln p(token) over every token but the first: 1 is a text foreseen, V one guessed blindly.

    Args:
        ids: the text. window: tokens that the model sees at once, 2048 or all its positions if fewer. A longer text
            is cut into such windows, and a window's first tokens are predicted from few: compare equal windows only.

    Raises: ArchcalcError for fewer than two tokens, or a model that is no decoder alone.
    """
    if not isinstance(model, DecoderOnly) or not model.config.head.has_logits:
        raise ArchcalcError(f"{type(model).__name__}: predicts no text on its own; choose a decoder-only model")
    if len(ids) < 2:
        raise ArchcalcError(f"{len(ids)} tokens: the first is not predicted, so at least 2 are needed; give more text")
    window = window_of(model, window)
    device = next(model.parameters()).device
    ids_1N = torch.tensor([ids], device=device)
    total = 0.0
    for begin in progress(range(0, len(ids) - 1, window), "perplexity"):
        # Windows overlap by one token: predicted in one, read in the next.
        part_1T = ids_1N[:, begin : begin + window + 1]
        total += _surprise(model, part_1T[:, :-1], part_1T[0, 1:])
    mean = total / (len(ids) - 1)
    return math.exp(mean) if mean < 700 else math.inf  # exp of more is no double


def window_of(model: DecoderOnly, window: int | None = None) -> int:
    """The window that `perplexity` uses. Raises: ArchcalcError if the model has not so many positions."""
    limit = model.config.max_position_embeddings
    if window is not None and not 1 <= window <= limit:
        raise ArchcalcError(f"window={window}: must be 1 to max_position_embeddings={limit}")
    return window or min(WINDOW, limit)


def _surprise(model: DecoderOnly, read_1T: torch.Tensor, predicted_T: torch.Tensor) -> float:
    """Sum of -ln p over the tokens that follow those read, in nats."""
    x_1TD = model.trunk(read_1T)
    rows = zip(x_1TD[0].split(ROWS), predicted_T.split(ROWS), strict=True)
    losses = [cross_entropy(model.head(x_TD[None])[0].float(), next_T, reduction="sum") for x_TD, next_T in rows]
    return float(torch.stack(losses).double().sum())
