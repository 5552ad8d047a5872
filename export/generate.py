"""Greedy decoding through an engine, with the same padding and stopping as `models.generate.greedy`."""

from __future__ import annotations

import numpy as np

from archcalc.errors import ConfigError
from models.progress import progress


def greedy(engine, prompt_ids: list[list[int]], max_new_tokens: int, eos: int | None = None) -> list[list[int]]:
    """The likeliest continuation of each prompt as token ids, without prompt and `eos`.

    Raises: ConfigError if a prompt is empty, or prompt and new tokens do not fit into the engine's cache.
    """
    if not prompt_ids or not all(prompt_ids):
        raise ConfigError("prompt_ids: every prompt needs a token; give at least one id each")
    lengths = np.array([len(ids) for ids in prompt_ids])
    longest, batch = int(lengths.max()), len(prompt_ids)
    ids = np.array([row + [0] * (longest - len(row)) for row in prompt_ids])
    positions = np.tile(np.arange(longest), (batch, 1))
    last = lengths[:, None] - 1
    cache = engine.new_cache(batch)
    new: list[list[int]] = [[] for _ in prompt_ids]
    running = set(range(batch))
    for step in progress(range(max_new_tokens), "generate"):
        chosen = engine.run(ids, positions, positions[:, 0], last, cache)[:, 0].argmax(-1)
        for row in sorted(running):
            if chosen[row] == eos:
                running.remove(row)
            else:
                new[row].append(int(chosen[row]))
        if not running:
            break
        ids, positions, last = chosen[:, None], (lengths + step)[:, None], np.zeros((batch, 1), np.int64)
    return new
