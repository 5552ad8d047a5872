"""`export bench`: seconds of passes, measured in turns so that a machine's drift meets all of them alike."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archcalc.config import ModelConfig
from archcalc.cost import Pass, bound
from archcalc.files import replaced_file
from export.build import Build
from export.files import ExportError
from export.runtimes.source import longest_source
from models.progress import progress


@dataclass(frozen=True)
class Point:
    """One shape of a pass: `tokens` a row, over a static cache of `context` tokens (1: a decode step).

    Args:
        context: None of an encoder's pass, which keeps none: its tokens are the source.
        source: tokens of the sources that a decoder's pass comes after; None without an encoder.
    """

    batch: int
    tokens: int
    context: int | None
    source: int | None = None

    @property
    def phase(self) -> str:
        if self.context is None:
            return "encode"
        return "decode" if self.tokens == 1 else "prefill"

    @property
    def start(self) -> int:
        """The first position: a decode step is the last one that the cache holds."""
        return self.context - 1 if self.phase == "decode" else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Arguments of `prepare` of an engine."""
        if self.phase == "encode":
            return self.batch, self.tokens
        return self.batch, self.tokens, self.start, *([self.source] if self.source else [])

    def attended(self, build: Build) -> int:
        """Keys that a query is multiplied with: the whole cache, or, by fused attention, those that are there."""
        whole = self.context is not None and build.manifest["target"] == "any"
        return self.context if whole else self.start + self.tokens

    def run(self, build: Build) -> Pass:
        """The pass that the engine makes at this point: one row gets logits, of an encoder alone every one."""
        once, step = bound(build.config)
        dims = {"B": self.batch, "T": self.tokens, "S": self.attended(build)}
        if self.phase == "encode":
            return Pass("encode", dims | {"R": self.tokens}, once if build.config.decoder else step)
        return Pass(self.phase, dims | {"R": 1} | ({"X": self.source} if self.source else {}), step)


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


PROMPTS, SOURCE = (16, 128), 128  # tokens, where nothing is asked for


def grid(
    build: Build, batches: Sequence[int], prompts: Sequence[int] | None = None, sources: Sequence[int] | None = None
) -> list[Point]:
    """Each pass of a build in each batch: its encoder's over each source, and after it decode and prefill.

    Args:
        prompts: tokens of a prefill (16 and 128), of those that a cache holds.
        sources: tokens of a source (128, or as many as there are positions). A model that listens knows one length.
    Raises: ExportError for prompts or sources of a model that reads none, or sources that it does not know.
    """
    config = build.config
    if prompts and not config.decoder:
        raise ExportError(f"prompt={prompts[0]}: {config.name} is an encoder, which continues nothing; give --source")
    sources = _sources(config, sources)
    points = [Point(batch, source, None) for source in sources for batch in batches]
    for context, source in itertools.product(build.capacities, sources or (None,)):
        fitting = [tokens for tokens in prompts or PROMPTS if tokens <= context]
        points += [Point(batch, 1, context, source) for batch in batches]
        points += [Point(batch, tokens, context, source) for batch in batches for tokens in fitting]
    return points


def _sources(config: ModelConfig, wanted: Sequence[int] | None) -> Sequence[int]:
    """Tokens of each source to measure; none without an encoder."""
    if not config.encoder:
        if wanted:
            raise ExportError(f"source={wanted[0]}: {config.name} has no encoder that would read it; leave it out")
        return ()
    if config.frontend:
        heard = config.frontend.tokens
        if wanted and set(wanted) != {heard}:
            raise ExportError(f"source={wanted[0]}: {config.name} always hears {heard} tokens; leave it out")
        return (heard,)
    most = longest_source(config)
    if wanted and max(wanted) > most:
        raise ExportError(f"source={max(wanted)}: {config.name} has positions for {most}; give at most that many")
    return wanted or (min(SOURCE, most),)


def prepare(build: Build, engine_of: Callable[[Any], Any], points: list[Point]) -> list[Callable[[], None]]:
    """One bound pass a point. Raises: ExportError for a context that the build has no graph for."""
    for point in points:
        if point.phase != "encode" and point.context not in build.capacities:
            raise ExportError(f"context={point.context}: the build has graphs for {list(build.capacities)}; build one")
    return [engine_at(point, build, engine_of).prepare(*point.sizes) for point in points]


def engine_at(point: Point, build: Build, engine_of: Callable[[Any], Any]) -> Any:
    """The engine that makes this pass: an encoder that feeds a decoder is part of that one's."""
    if point.phase == "encode" and build.capacities:
        return engine_of(max(build.capacities)).encoder
    return engine_of(point.context)


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
    build: Build, engine_of: Callable[[Any], Any], points: list[Point], rounds: int = 30, **how: Any
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
