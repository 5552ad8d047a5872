"""Analytical against measured: what must be equal is equal to the unit, and time lies within a stated bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archcalc.cost import bound, cache_elements, parameters, total
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from export.bench import Point, Timing
from export.build import Build
from export.graph import WEIGHTS
from export.graph_count import count_flops, count_parameters

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
    path, weights = build.graph(context), build.folder / WEIGHTS
    size, held = kind.numpy.itemsize, parameters(build.config)
    rows = [Exact("parameters", held, count_parameters(path), "elements of the graph's weights")]
    for point in (Point(batch, tokens, context), Point(batch, 1, context)):
        derived = total(point.run(build), dense=True).flops
        sizes = {"batch": batch, "tokens": point.tokens, "logit_positions": 1}
        shape = f"B={batch}, T={point.tokens}, S={context}"
        rows.append(Exact(f"{point.phase} FLOPs", derived, count_flops(path, sizes), f"products in the graph, {shape}"))
    kept = sum(cache_elements(bound(build.config)[1], batch, context, static=True)) * size
    found = engine.cache_bytes(engine.new_cache(batch))
    rows.append(Exact("KV-cache bytes", kept, found, f"the engine's buffers, B={batch}, S={context}"))
    rows.append(Exact("weight-file bytes", held * size, weights.stat().st_size, f"size of {WEIGHTS}"))
    return rows


def latency(build: Build, timings: list[Timing], machine: Machine) -> list[Latency]:
    """Each measured point beside its prediction."""
    kind = precision(build.precision.name)
    return [Latency(timing, predict(timing.point.run(build), machine, kind)) for timing in timings]


def latency_passed(rows: list[Latency]) -> bool:
    """Whether the median |error| and the worst one lie within the bars."""
    errors = np.abs([row.error for row in rows])
    return bool(np.median(errors) <= MEDIAN_BAR and errors.max() <= WORST_BAR)
