"""One file a backend, each with a class of the same interface, imported only when it is used.

engine.new_cache(batch)                                        keys and values of `batch` empty sequences
engine.run(input_ids, position_ids, write_indices, logit_indices, cache) -> logits [B, R, V], fp32 numpy
engine.prepare(batch, tokens, start) -> Callable[[], None]     one pass with everything bound, for timing
engine.cache_bytes(cache) -> int                               bytes of the bound keys and values
"""

from __future__ import annotations

import numpy as np

from archcalc.errors import ConfigError


def check_fits(write_indices: np.ndarray, tokens: int, capacity: int) -> None:
    """Raise ConfigError if `tokens` from any of these slots on would run over the cache."""
    end = int(write_indices.max()) + tokens
    if end > capacity or int(write_indices.min()) < 0:
        raise ConfigError(
            f"context={end}: the cache holds capacity={capacity} tokens; use a graph of a larger capacity"
        )
