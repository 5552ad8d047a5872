"""Analytical against measured: what must be equal is equal to the unit, and time lies within a stated bar."""

from __future__ import annotations

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
from export.expressible import check_decoder_alone
from export.graph_count import count_flops, count_parameters
from export.linked_weights import tensor_bytes
from export.precision import number_format
from export.runtimes import engines
from export.stored_bytes import weight_bytes

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


def exact(build: Build, engine, batch: int = 2, tokens: int = 5) -> list[Exact]:
    """The counts of a build, derived from its config and found in its graph, its files and its cache."""
    context, kind = engine.capacity, build.precision
    path, data = build.graph(context), build.data
    held = parameters(build.config)
    rows = [Exact("parameters", held, count_parameters(path), "elements of the graph's weights")]
    for point in (Point(batch, tokens, context), Point(batch, 1, context)):
        derived = total(point.run(build), dense=True).flops
        keys = point.attended(build)
        sizes = {"batch": batch, "tokens": point.tokens, "logit_positions": 1, "keys": keys}
        shape = f"B={batch}, T={point.tokens}, S={keys}"
        rows.append(Exact(f"{point.phase} FLOPs", derived, count_flops(path, sizes), f"products in the graph, {shape}"))
    kept = sum(cache_elements(bound(build.config)[1], batch, context, static=True)) * kind.numpy.itemsize
    found = engine.cache_bytes(engine.new_cache(batch))
    rows.append(Exact("KV-cache bytes", kept, found, f"the engine's buffers, B={batch}, S={context}"))
    derived, found = weight_bytes(build.config, kind), sum(tensor_bytes(build.folder / name) for name in data)
    rows.append(Exact("weight-file bytes", derived, found, f"size of {', '.join(data)}"))
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


def points(capacities: tuple[int, ...]) -> list[Point]:
    """Points for the shortest and the longest cache of a build, twelve if these differ. The probes are other models."""
    short, longest = min(capacities), max(capacities)
    decode = [(1, short), (1, longest), (3, short), (2, longest), (6, longest)]
    share = [(1, 0.1, short), (1, 0.05, longest), (1, 0.375, short), (1, 0.75, short), (2, 0.0625, longest)]
    share += [(3, 0.15, short), (1, 0.4, longest)]
    prefill = [Point(batch, max(2, int(part * context)), context) for batch, part, context in share]
    return list(dict.fromkeys([Point(batch, 1, context) for batch, context in decode] + prefill))


def compare_build(target: Build, probe_folder: Path, backend: str, engine=None) -> Comparison:
    """Count, calibrate on the probes, measure all in turns, predict.

    Args:
        engine: a function from capacity to the target's engine, if it is open already.
    """
    check_decoder_alone(target.config, "compare")
    engine = engine or engines(target, backend, compile_first=True)
    held_out = points(target.capacities)
    counts = exact(target, engine(max(target.capacities)))
    seen, passes = [], []
    for name, probe in build_probes(probe_folder, target.precision, target.manifest["target"]).items():
        seen += [(probe, point) for point in PROBE_POINTS[name]]
        passes += prepare(probe, engines(probe, backend, compile_first=True), PROBE_POINTS[name])
    turns = measure(passes + prepare(target, engine, held_out))
    calibration = [(p, Timing(point, tuple(t))) for (p, point), t in zip(seen, turns, strict=False)]
    measured = [Timing(point, tuple(t)) for point, t in zip(held_out, turns[len(seen) :], strict=True)]
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
    return f"{point.phase} B={point.batch} T={point.tokens} S={point.context}"


def conclusion(problems: list[str]) -> str:
    return "Disagreement: " + "; ".join(problems) if problems else "Everything agrees."
