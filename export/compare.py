"""Analytical against measured: what must be equal is equal to the unit, and time lies within a stated bar."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archcalc.cost import bound, cache_elements, parameters, total
from archcalc.latency import Machine, predict
from archcalc.units import duration
from export.bench import Point, Timing, measure, prepare
from export.build import Build
from export.calibrate import PROBE_POINTS, build_probes, fit
from export.graph_count import count_flops, count_parameters
from export.linked_weights import tensor_bytes
from export.precision import number_format
from export.runtimes import engines
from export.runtimes.source import longest_source, random_source
from export.stored_bytes import weight_bytes
from models.builder import skeleton

MEDIAN_BAR, WORST_BAR = 0.15, 0.40
BAR_REASON = "the law has six parameters for every shape, and neighbours on the machine take turns with us"


@dataclass(frozen=True)
class Exact:
    """A count that must be equal: what the calculator derives and what was found."""

    quantity: str
    predicted: int
    measured: int
    how: str

    @property
    def passed(self) -> bool:
        return self.predicted == self.measured


@dataclass(frozen=True)
class Latency:
    """A point's predicted and measured seconds."""

    timing: Timing
    predicted: float

    @property
    def error(self) -> float:
        """Relative: +0.1 is predicted 10% too slow."""
        return self.predicted / self.timing.median - 1


def exact(build: Build, engine, batch: int = 2, tokens: int = 5, source: int = 7) -> list[Exact]:
    """The counts of a build, derived from its config and found in its graphs, its files and its cache.

    Args:
        source: tokens of a source; of a model that listens there is one length.
    """
    config, data, context = build.config, build.data, engine.capacity
    source = config.source_tokens(source) if config.encoder else None
    graphs = [build.graph(capacity) for capacity in dict.fromkeys([None, context] if config.encoder else [context])]
    beside = {name for name, _ in skeleton(config).named_buffers()}
    whose = "elements of the graphs' weights" if len(graphs) > 1 else "elements of the graph's weights"
    rows = [Exact("parameters", parameters(config), count_parameters(*graphs, beside=beside), whose)]
    passes = [Point(batch, source, None)] if config.encoder else []
    passes += [Point(batch, count, context, source) for count in (tokens, 1)] if config.decoder else []
    rows += [_flops(build, point) for point in passes]
    rows += _cache_bytes(build, engine, batch, source) if config.decoder else []
    derived = weight_bytes(config, build.precision)
    found = sum(tensor_bytes(build.folder / name) for name in data)
    return [*rows, Exact("weight-file bytes", derived, found, f"size of {', '.join(data)}")]


def _flops(build: Build, point: Point) -> Exact:
    """FLOPs of a pass. An encoder's axis of tokens is the source's."""
    derived, keys = total(point.run(build), dense=True).flops, point.attended(build)
    sizes = {"batch": point.batch, "tokens": point.tokens, "logit_positions": 1, "keys": keys}
    sizes["source_tokens"] = point.source or point.tokens
    found = count_flops(build.graph(point.context), sizes)
    shape = f"B={point.batch}, T={point.tokens}, S={keys}" + (f", X={point.source}" if point.source else "")
    return Exact(f"{point.phase} FLOPs", derived, found, f"products in the graph, {shape}")


def _cache_bytes(build: Build, engine, batch: int, source: int | None) -> list[Exact]:
    """Bytes of a decoder's own cache, and of the keys and values of sources."""
    step, size = bound(build.config)[1], build.precision.numpy.itemsize
    kept = cache_elements(step, batch, engine.capacity, source or 0, static=True)
    found = engine.cache_bytes(engine.new_cache(batch))
    how = f"the engine's buffers, B={batch}, S={engine.capacity}"
    rows = [Exact("KV-cache bytes", (kept.cache + kept.state) * size, found, how)]
    if source:
        made = engine.encode(*random_source(build, batch, source))
        found = engine.cache_bytes([array for name, array in made.items() if name != "source_mask"])
        rows.append(Exact("cross-KV bytes", kept.cross * size, found, f"what the encoder made, B={batch}, X={source}"))
    return rows


def latency(build: Build, timings: list[Timing], machine: Machine) -> list[Latency]:
    """Each measured point beside its prediction."""
    kind = number_format(build.precision)
    return [Latency(timing, predict(timing.point.run(build), machine, kind)) for timing in timings]


def latency_passed(rows: list[Latency]) -> bool:
    """Whether the median |error| and the worst one lie within the bars."""
    errors = np.abs([row.error for row in rows])
    return bool(np.median(errors) <= MEDIAN_BAR and errors.max() <= WORST_BAR)


@dataclass(frozen=True)
class Comparison:
    """A build's counts and latency, derived and found."""

    build: Build
    backend: str
    exact: list[Exact]
    latency: list[Latency]
    machine: Machine
    probes: list[tuple[str, Timing, float]]  # the probe's name, what it took, the error the fit left

    @property
    def problems(self) -> list[str]:
        found = [
            f"{row.quantity}: derived {row.predicted:,}, found {row.measured:,}" for row in self.exact if not row.passed
        ]
        if not latency_passed(self.latency):
            found.append("latency: predicted and measured differ by more than the bars")
        return found


LONGEST_SOURCE = 512  # tokens: a TensorRT engine of an encoder is built for no more


def held_out(build: Build) -> list[Point]:
    """The points that a build is measured at. The probes are other models."""
    config, lengths = build.config, [LONGEST_SOURCE // 8, LONGEST_SOURCE]
    if not config.encoder:
        return points(build.capacities)
    if config.frontend:
        lengths = [config.frontend.tokens]
    sources = tuple(min(length, longest_source(config)) for length in lengths)
    return encoder_points(sources) + (points(build.capacities, sources) if config.decoder else [])


def encoder_points(sources: tuple[int, ...]) -> list[Point]:
    """Passes of an encoder, ten over sources of any length up to the longest, two where there is but one length."""
    share = [(1, 1), (2, 1)]
    if len(sources) > 1:
        share = [(1, 0.05), (1, 0.15), (1, 0.375), (1, 1), (2, 0.0625), (2, 0.25), (3, 0.125), (3, 0.375), (6, 0.1)]
        share += [(6, 0.2)]
    return list(dict.fromkeys(Point(batch, max(2, int(part * max(sources))), None) for batch, part in share))


def points(capacities: tuple[int, ...], sources: tuple[int, ...] = ()) -> list[Point]:
    """Decoder passes with the shortest and the longest cache of a build, twelve if these differ.

    Args:
        sources: tokens of the sources that they come after by turns.
    """
    short, longest = min(capacities), max(capacities)
    decode = [(1, short), (1, longest), (3, short), (2, longest), (6, longest)]
    share = [(1, 0.1, short), (1, 0.05, longest), (1, 0.375, short), (1, 0.75, short), (2, 0.0625, longest)]
    share += [(3, 0.15, short), (1, 0.4, longest)]
    sizes = [(batch, 1, context) for batch, context in decode]
    sizes += [(batch, max(2, int(part * context)), context) for batch, part, context in share]
    after = itertools.cycle(sources or (None,))
    return [Point(*size, next(after)) for size in dict.fromkeys(sizes)]


def compare_build(target: Build, probe_folder: Path, backend: str, engine=None) -> Comparison:
    """Count, calibrate on the probes, measure all in turns, predict.

    Args:
        engine: a function from capacity to the target's engine, if it is open already.
    """
    engine = engine or engines(target, backend, compile_first=True)
    measured_at = held_out(target)
    counts = exact(target, engine(max(target.capacities, default=None)))
    seen, passes = [], []
    for name, probe in build_probes(probe_folder, target.precision, target.manifest["target"]).items():
        seen += [(probe, point) for point in PROBE_POINTS[name]]
        passes += prepare(probe, engines(probe, backend, compile_first=True), PROBE_POINTS[name])
    turns = measure(passes + prepare(target, engine, measured_at))
    calibration = [(p, Timing(point, tuple(t))) for (p, point), t in zip(seen, turns, strict=False)]
    measured = [Timing(point, tuple(t)) for point, t in zip(measured_at, turns[len(seen) :], strict=True)]
    machine, left = fit(calibration)
    rows = latency(target, measured, machine)
    probes = [(p.config.name, timing, error) for (p, timing), error in zip(calibration, left, strict=True)]
    return Comparison(target, backend, counts, rows, machine, probes)


HEADERS = ["quantity", "predicted", "measured", "verdict", "why"]


def comparison_rows(found: Comparison) -> list[list[Any]]:
    """Rows of counts and latencies: quantity, predicted, measured, verdict, and why or how."""
    passed = {True: "equal", False: "DIFFERS"}
    rows: list[list[Any]] = [[e.quantity, e.predicted, e.measured, passed[e.passed], e.how] for e in found.exact]
    for row in found.latency:
        point = row.timing.point
        spread = f"p90/p10 {row.timing.quantile(0.9) / row.timing.quantile(0.1):.2f}"
        times = [duration(row.predicted), duration(row.timing.median)]
        rows.append([named(point), *times, f"{row.error:+.1%}", spread])
    errors = np.abs([row.error for row in found.latency])
    bars = f"bars {MEDIAN_BAR:.0%} and {WORST_BAR:.0%}: {BAR_REASON}"
    outcome = "within" if latency_passed(found.latency) else "DIFFERS"
    rows.append(
        ["latency, median and worst |error|", "", f"{np.median(errors):.1%}, {errors.max():.1%}", outcome, bars]
    )
    return rows


def named(point: Point) -> str:
    axes = {"B": point.batch, "T": point.tokens, "S": point.context, "X": point.source}
    return " ".join([point.phase, *(f"{axis}={size}" for axis, size in axes.items() if size)])


def conclusion(problems: list[str]) -> str:
    return "Disagreement: " + "; ".join(problems) if problems else "Everything agrees."
