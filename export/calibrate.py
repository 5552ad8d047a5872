"""Fit the machine's law to probes: two models of their own, neither of which is the one that is predicted."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np

from archcalc.hf import config_from_keys
from archcalc.latency import Machine, predict
from export.bench import Point, Timing
from export.build import Build, build
from export.precision import ExportPrecision, number_format

_COMMON = {"model_type": "llama", "max_position_embeddings": 2048, "tie_word_embeddings": True}
# Two models that no preset has. The wide one's weights (190 MB in fp32) are several times a last-level cache, so they
# stream; the thin one is all launches. Without both, bandwidth and launches could not be told apart.
PROBES = {
    "wide": _COMMON
    | {"vocab_size": 8192, "hidden_size": 768, "num_hidden_layers": 6, "intermediate_size": 2048}
    | {"num_attention_heads": 12, "num_key_value_heads": 4},
    "thin": _COMMON
    | {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 16, "intermediate_size": 256}
    | {"num_attention_heads": 4, "num_key_value_heads": 2},
}
PROBE_POINTS = {
    "wide": [
        *[Point(batch, 1, 128) for batch in (1, 4, 8)],
        *[Point(batch, 1, 1280) for batch in (1, 4, 8)],
        *[Point(1, tokens, 128) for tokens in (4, 8, 16, 32, 64, 128)],
        *[Point(1, tokens, 1280) for tokens in (32, 256)],
        Point(4, 32, 128),
    ],
    "thin": [Point(1, 1, 128), Point(1, 1, 1280)],
}
START = Machine(1e10, 1e11, 2.0, 1e-10, 1e-9, 5e-6)
LOWEST = Machine(1e8, 1e8, 1.0, 1e-13, 1e-13, 1e-8)
HIGHEST = Machine(1e13, 1e16, 8.0, 1e-7, 1e-7, 1e-2)


def build_probes(out: Path, precision: str | ExportPrecision, target: str = "any") -> dict[str, Build]:
    """Export the probes, in the precision and for the target that are predicted, into folders of `out`."""
    probes = {}
    for name, keys in PROBES.items():
        contexts = tuple(sorted({point.context for point in PROBE_POINTS[name]}))
        config = config_from_keys(keys, name=f"{name} probe")
        probes[name] = build(config, out / name, precision, contexts, target=target)
    return probes


def fit(timings: list[tuple[Build, Timing]]) -> tuple[Machine, list[float]]:
    """The law's parameters from the probes' medians, by least squares of log(predicted / measured).

    Returns: the machine, and the relative error that is left at each of the points.
    """
    from scipy.optimize import least_squares

    form = number_format(timings[0][0].precision)
    runs = [timing.point.run(probe) for probe, timing in timings]
    measured = np.log([timing.median for _, timing in timings])

    def errors(logs: np.ndarray) -> np.ndarray:
        machine = Machine(*np.exp(logs))
        return np.log([predict(run, machine, form) for run in runs]) - measured

    bounds = np.log(astuple(LOWEST)), np.log(astuple(HIGHEST))
    found = least_squares(errors, np.log(astuple(START)), bounds=bounds, loss="soft_l1", f_scale=0.1)
    return Machine(*map(float, np.exp(found.x))), [float(e) for e in np.exp(errors(found.x)) - 1]
