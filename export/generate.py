"""Text generation through an engine, as `models.generate` does it through a model: the same arguments and tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import numpy as np
import torch

from archcalc.errors import ConfigError
from export.runtimes import check_fits
from models.generate import Sampling
from models.progress import progress
from models.sampling import likeliest


def generate(
    engine,
    prompt_ids: list[list[int]],
    max_new_tokens: int,
    *,
    eos: Collection[int] = (),
    sampler: Sampling = likeliest,
) -> Iterator[list[int | None]]:
    """The continuation of each prompt, one token id a row a step; None once a row has reached an id of `eos`.

    Args:
        engine: of `export.runtimes`.
        prompt_ids: B rows of token ids, not empty, of any lengths: padded behind, and the padding overwritten,
            or in front where the build says so.
        sampler: makes ids [B] of logits [B, V]; see models.sampling. The logits are overwritten after the step.
    Raises: ConfigError, before the first token, if a prompt is empty, an id is unknown to the model, or prompt and
        new tokens do not fit into the engine's cache.
    """
    if not prompt_ids or not all(prompt_ids):
        raise ConfigError("prompt_ids: every prompt needs a token; give at least one id each")
    vocabulary = engine.build.config.vocab_size
    unknown = next((i for ids in prompt_ids for i in ids if not 0 <= i < vocabulary), None)
    if unknown is not None:
        raise ConfigError(f"prompt_ids: id {unknown}, but vocab_size={vocabulary}; is this the model's tokenizer?")
    lengths_B = np.array([len(ids) for ids in prompt_ids])
    ends_B = np.full_like(lengths_B, lengths_B.max()) if engine.build.pads_in_front else lengths_B
    check_fits(ends_B, max_new_tokens - 1, engine.capacity)  # the last token is not read
    return _generate(engine, prompt_ids, lengths_B, max_new_tokens, frozenset(eos), sampler)


def greedy(engine, prompt_ids: list[list[int]], max_new_tokens: int, eos: int | None = None) -> list[list[int]]:
    """The likeliest continuation of each prompt as token ids, without prompt and `eos`, as `models.generate.greedy`.

    Raises: ConfigError as `generate`.
    """
    new: list[list[int]] = [[] for _ in prompt_ids]
    steps = generate(engine, prompt_ids, max_new_tokens, eos=() if eos is None else (eos,))
    for tokens in progress(steps, "generate"):
        for row, token in zip(new, tokens, strict=True):
            if token is not None:
                row.append(token)
    return new


def _generate(engine, prompt_ids, lengths_B, max_new_tokens, eos, sampler) -> Iterator[list[int | None]]:
    batch, longest = len(prompt_ids), int(lengths_B.max())
    padding_B = longest - lengths_B if engine.build.pads_in_front else np.zeros_like(lengths_B)  # in front of a row
    ids_BT = np.zeros((batch, longest), np.int64)
    for row, ids, padding in zip(ids_BT, prompt_ids, padding_B, strict=True):
        row[padding : padding + len(ids)] = ids
    positions_BT = np.arange(longest) - padding_B[:, None]
    cache = engine.new_cache(batch)
    last_B1 = (padding_B + lengths_B)[:, None] - 1
    logits_B1V = engine.run(ids_BT, positions_BT, np.zeros_like(lengths_B), last_B1, cache)
    step = engine.bind(batch, 1, 1, cache)
    only_B1 = np.zeros((batch, 1), np.int64)  # a step's one token gets logits
    running = [True] * batch
    for more in reversed(range(max_new_tokens)):
        with _one_thread():
            chosen_B = sampler(torch.from_numpy(logits_B1V[:, 0])).numpy()
        tokens = chosen_B.tolist()
        running = [on and token not in eos for on, token in zip(running, tokens, strict=True)]
        if not any(running):
            return
        yield [token if on else None for on, token in zip(running, tokens, strict=True)]
        if more:
            logits_B1V = step(chosen_B[:, None], lengths_B[:, None], padding_B + lengths_B, only_B1)
            lengths_B = lengths_B + 1


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread: those of an engine spin for a while after a pass, and more would have to wait for a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
