"""Greedy targets of an encoder-decoder through an engine, as `models.generate.greedy` makes them through a model."""

from __future__ import annotations

import numpy as np

from archcalc.errors import ConfigError
from export.generate import greedy
from models.generate import target_start


def greedy_targets(
    engine, source_ids: list[list[int]], max_new_tokens: int, eos: int | None = None, start_id: int | None = None
) -> list[list[int]]:
    """The likeliest target of each source as token ids, without the start token and `eos`.

    Args:
        engine: of `export.runtimes`, with an encoder. source_ids: B rows of token ids, of any lengths, not empty.
        start_id: what a target begins after; by default the config's `decoder_start_token_id`.
    Raises: ConfigError or ArchcalcError, before the first token, for sources or starts that the model does not know,
        or more new tokens than fit into the engine's cache.
    """
    if not source_ids or not all(source_ids):
        raise ConfigError("source_ids: every source needs a token; give at least one id each")
    start = target_start(engine.build.config, start_id)
    longest, lengths_B1 = max(map(len, source_ids)), np.array([[len(ids)] for ids in source_ids])
    source_BX = np.array([ids + [0] * (longest - len(ids)) for ids in source_ids])
    source = engine.encode(source_BX, np.arange(longest) < lengths_B1)
    return greedy(engine.after(source), [[start]] * len(source_ids), max_new_tokens, eos)
