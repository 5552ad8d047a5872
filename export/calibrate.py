"""Fit the machine's law to a probe: a model of its own, which is not the one that is predicted."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np

from archcalc.hf import config_from_keys
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from export.bench import Point, Timing
from export.build import Build, build

# Weights of 190 MB in fp32: several times a desktop's or server's last-level cache, so that they stream.
PROBE = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
PROBE_POINTS = [
    *[Point(batch, 1, 128) for batch in (1, 2, 4, 8)],
    *[Point(batch, 1, 640) for batch in (1, 4)],
    *[Point(1, tokens, 128) for tokens in (8, 16, 32, 64, 128)],
    *[Point(1, tokens, 640) for tokens in (32, 256)],
    Point(2, 32, 640),
    Point(4, 32, 128),
]
START = Machine(1e10, 5e10, 2.0, 1e-10, 1e-9, 1e-10, 5e-6)
LOWEST = Machine(1e8, 1e8, 1.0, 1e-13, 1e-13, 1e-14, 1e-8)
HIGHEST = Machine(1e13, 1e16, 8.0, 1e-7, 1e-7, 1e-7, 1e-2)


def build_probe(out: Path, precision_name: str) -> Build:
    """Export the probe in the precision that is going to be predicted."""
    contexts = tuple(sorted({point.context for point in PROBE_POINTS}))
    return build(config_from_keys(PROBE, name="probe"), out, precision_name, contexts)


def fit(probe: Build, timings: list[Timing]) -> tuple[Machine, list[float]]:
    """The law's parameters from the probe's fastest samples, by least squares of log(predicted / measured).

    Returns: the machine, and the relative error that is left at each of the probe's points.
    """
    from scipy.optimize import least_squares

    number_format = precision(probe.precision.name)
    runs = [timing.point.run(probe) for timing in timings]
    measured = np.array([timing.best for timing in timings])

    def errors(logs: np.ndarray) -> np.ndarray:
        machine = Machine(*np.exp(logs))
        return np.log([predict(run, machine, number_format) for run in runs]) - np.log(measured)

    bounds = np.log(astuple(LOWEST)), np.log(astuple(HIGHEST))
    found = least_squares(errors, np.log(astuple(START)), bounds=bounds, loss="soft_l1", f_scale=0.1, x_scale=1.0)
    return Machine(*map(float, np.exp(found.x))), [float(e) for e in np.exp(errors(found.x)) - 1]
