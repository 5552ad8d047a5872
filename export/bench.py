"""`export bench`: seconds of passes, measured in turns so that a machine's drift meets all of them alike."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archcalc.cost import Pass, bound
from archcalc.files import replaced_file
from export.build import Build
from export.expressible import check_decoder_alone
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

    @property
    def start(self) -> int:
        """The first position: a decode step is the last one that the cache holds."""
        return self.context - 1 if self.tokens == 1 else 0

    def attended(self, build: Build) -> int:
        """Keys that a query is multiplied with: the whole cache, or, by fused attention, those that are there."""
        return self.context if build.manifest["target"] == "any" else self.start + self.tokens

    def run(self, build: Build) -> Pass:
        """The pass that the engine makes at this point: one row gets logits."""
        dims = {"B": self.batch, "T": self.tokens, "S": self.attended(build), "R": 1}
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
    check_decoder_alone(build.config, "bench")
    for point in points:
        if point.context not in build.capacities:
            raise ExportError(f"context={point.context}: the build has graphs for {list(build.capacities)}; build one")
    return [
        engine_of(point.context).prepare(point.batch, point.tokens, point.start)  # type: ignore[attr-defined]
        for point in points
    ]


WARM_UP_SECONDS = 0.08  # the idle threads of the session before take a core for about 50 ms
TURN_SECONDS = 0.05  # a turn of a short pass repeats it for so long


def measure(
    passes: list[Callable[[], None]],
    rounds: int = 9,
    seconds: float = 120.0,
    *,
    warm_up: float | None = None,
    duration: float = 0.0,
    iterations: int = 1,
) -> list[list[tuple[float, ...]]]:
    """Samples of each pass in seconds, [pass][turn][sample]; all passes have a turn in every round.

    So whatever else keeps the machine busy meets all of them alike, and medians of the samples can be compared.

    Args:
        seconds: after that long no further round begins (3 are made at least).
        warm_up: seconds of unmeasured runs before each turn (0.08).
        duration, iterations: rounds go on, whatever `rounds` and `seconds` say, until each pass has samples of so
            many seconds in all, and so many of them.
    """
    turns: list[list[tuple[float, ...]]] = [[] for _ in passes]
    began = time.perf_counter()

    def wanted() -> Iterator[int]:
        for done in itertools.count():
            over = done >= rounds or (done >= 3 and time.perf_counter() - began > seconds)
            if over and all(_enough(found, duration, iterations) for found in turns):
                return
            yield done

    for _ in progress(wanted(), "measure"):
        for run, found in zip(passes, turns, strict=True):
            found.append(_turn(run, WARM_UP_SECONDS if warm_up is None else warm_up))
    return turns


def _enough(turns: list[tuple[float, ...]], duration: float, iterations: int) -> bool:
    samples = [sample for turn in turns for sample in turn]
    return sum(samples) >= duration and len(samples) >= iterations


def _turn(run: Callable[[], None], warm_up: float) -> tuple[float, ...]:
    """Samples of one turn, after as many unmeasured runs as it takes to be alone on the machine and warm."""
    _repeat(run, warm_up)
    return _repeat(run, TURN_SECONDS)


def _repeat(run: Callable[[], None], seconds: float) -> tuple[float, ...]:
    """Seconds of each run, once at least and until so much time is spent."""
    samples: list[float] = []
    spent = 0.0
    while spent <= seconds:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
        spent += samples[-1]
    return tuple(samples)


def bench(
    build: Build, engine_of: Callable[[int], object], points: list[Point], rounds: int = 30, **how: Any
) -> list[Timing]:
    """Measure these points of a build. `how`: further arguments of `measure`."""
    measured = measure(prepare(build, engine_of, points), rounds, **how)
    return [Timing(point, tuple(turns)) for point, turns in zip(points, measured, strict=True)]


def write_times(path: Path, timings: list[Timing], origin: dict[str, Any]) -> None:
    """Every sample, in milliseconds, as JSON: the facts of `origin`, and of each point its turns in order.

    Raises: ExportError if the file cannot be written.
    """
    points = [
        asdict(timing.point)
        | {
            "phase": timing.point.phase,
            "latency_ms": [[round(sample * 1000, 6) for sample in turn] for turn in timing.turns],
        }
        for timing in timings
    ]
    try:
        with replaced_file(path) as temporary:
            temporary.write_text(json.dumps(origin | {"points": points}, indent=1) + "\n")
    except OSError as error:
        raise ExportError(f"exportTimes={path}: cannot be written, {error.strerror}; give another file") from None
