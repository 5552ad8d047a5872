"""Seconds of runs that take turns, so that a machine's drift meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from models.progress import progress

Key = TypeVar("Key")


def medians(runs: Mapping[Key, Callable[[], object]], rounds: int, repeat: int = 1) -> dict[Key, float]:
    """Median over the rounds of each run's seconds: the least of `repeat` in a row, after one that is not measured.

    A run may have effects, such as a cache that grows by a token: it is called rounds · (repeat + 1) times.
    """
    found: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in progress(range(rounds), "measure"):
        for key, run in runs.items():
            run()
            found[key].append(min(seconds(run) for _ in range(repeat)))
    return {key: float(np.median(samples)) for key, samples in found.items()}


def seconds(run: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
