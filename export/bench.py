"""`export bench`: seconds of passes, measured in turns so that a machine's drift meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from archcalc.cost import Pass, bound
from export.build import Build
from export.files import ExportError
from models.progress import progress


@dataclass(frozen=True)
class Point:
    """One shape of a pass: `tokens` a row (1: a decode step) over a static cache of `context` tokens."""

    batch: int
    tokens: int
    context: int

    @property
    def phase(self) -> str:
        return "decode" if self.tokens == 1 else "prefill"

    def run(self, build: Build) -> Pass:
        """The pass that the engine makes at this point: the whole cache is attended, one row gets logits."""
        dims = {"B": self.batch, "T": self.tokens, "S": self.context, "R": 1}
        return Pass(self.phase, dims, bound(build.config)[1])


@dataclass(frozen=True)
class Timing:
    """Samples of one point, in seconds."""

    point: Point
    samples: tuple[float, ...]

    def quantile(self, q: float) -> float:
        return float(np.quantile(self.samples, q))

    @property
    def median(self) -> float:
        return self.quantile(0.5)


def prepare(build: Build, engine_of: Callable[[int], object], points: list[Point]) -> list[Callable[[], None]]:
    """One bound pass a point. Raises: ExportError for a context that the build has no graph for."""
    for point in points:
        if point.context not in build.capacities:
            raise ExportError(f"context={point.context}: the build has graphs for {list(build.capacities)}; build one")
    starts = [point.context - 1 if point.tokens == 1 else 0 for point in points]
    return [
        engine_of(point.context).prepare(point.batch, point.tokens, start)  # type: ignore[attr-defined]
        for point, start in zip(points, starts, strict=True)
    ]


WARM_UP_SECONDS = 0.08  # the idle threads of the session before take a core for about 50 ms
TURN_SECONDS = 0.05  # a turn of a short pass repeats it for so long


def measure(passes: list[Callable[[], None]], rounds: int = 9, seconds: float = 120.0) -> list[list[float]]:
    """Samples of each pass in seconds, [pass][sample]; all passes have a turn in every round.

    So whatever else keeps the machine busy meets all of them alike, and medians of the samples can be compared.

    Args:
        seconds: after that long no further round begins (3 are made at least).
    """
    samples: list[list[float]] = [[] for _ in passes]
    began = time.perf_counter()
    for done in progress(range(rounds), "measure"):
        if done >= 3 and time.perf_counter() - began > seconds:
            break
        for run, found in zip(passes, samples, strict=True):
            found += _turn(run)
    return samples


def _turn(run: Callable[[], None]) -> list[float]:
    """Samples of one turn, after as many unmeasured runs as it takes to be alone on the machine and warm."""
    _repeat(run, WARM_UP_SECONDS)
    return _repeat(run, TURN_SECONDS)


def _repeat(run: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each run, once at least and until so much time is spent."""
    samples: list[float] = []
    while sum(samples) <= seconds:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return samples


def bench(build: Build, engine_of: Callable[[int], object], points: list[Point], rounds: int = 30) -> list[Timing]:
    """Measure these points of a build."""
    samples = measure(prepare(build, engine_of, points), rounds)
    return [Timing(point, tuple(found)) for point, found in zip(points, samples, strict=True)]
