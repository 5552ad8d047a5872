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
    """Seconds that a point took: the samples of each of its turns."""

    point: Point
    turns: tuple[tuple[float, ...], ...]

    def quantile(self, q: float) -> float:
        """Over all samples."""
        return float(np.quantile([sample for turn in self.turns for sample in turn], q))

    @property
    def median(self) -> float:
        """Of the turns' medians: a turn counts once, however many samples fitted into it, so that a while in which
        the machine is busy weighs the same for short and for long passes."""
        return float(np.median([np.median(turn) for turn in self.turns]))


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


def measure(passes: list[Callable[[], None]], rounds: int = 9, seconds: float = 120.0) -> list[list[tuple[float, ...]]]:
    """Samples of each pass in seconds, [pass][turn][sample]; all passes have a turn in every round.

    So whatever else keeps the machine busy meets all of them alike, and medians of the samples can be compared.

    Args:
        seconds: after that long no further round begins (3 are made at least).
    """
    turns: list[list[tuple[float, ...]]] = [[] for _ in passes]
    began = time.perf_counter()
    for done in progress(range(rounds), "measure"):
        if done >= 3 and time.perf_counter() - began > seconds:
            break
        for run, found in zip(passes, turns, strict=True):
            found.append(_turn(run))
    return turns


def _turn(run: Callable[[], None]) -> tuple[float, ...]:
    """Samples of one turn, after as many unmeasured runs as it takes to be alone on the machine and warm."""
    _repeat(run, WARM_UP_SECONDS)
    return _repeat(run, TURN_SECONDS)


def _repeat(run: Callable[[], None], seconds: float) -> tuple[float, ...]:
    """Seconds of each run, once at least and until so much time is spent."""
    samples: list[float] = []
    while sum(samples) <= seconds:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return tuple(samples)


def bench(build: Build, engine_of: Callable[[int], object], points: list[Point], rounds: int = 30) -> list[Timing]:
    """Measure these points of a build."""
    measured = measure(prepare(build, engine_of, points), rounds)
    return [Timing(point, tuple(turns)) for point, turns in zip(points, measured, strict=True)]
