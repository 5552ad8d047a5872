"""Depth against width at equal parameters: shallow and wide to deep and narrow, counted, predicted and measured.

Each model is exported and runs on ONNX Runtime. Its latency is predicted by the law of `archcalc.latency`, fitted in
the same run to the two probes of `export.calibrate`, which are none of these models.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archcalc.config import ModelConfig
from archcalc.cost import Pass, bound, cache_elements, parameters, passes, total
from archcalc.hf import config_from_keys
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from archcalc.units import duration, scaled
from export.bench import Point, Timing, measure, prepare
from export.build import Build, build
from export.calibrate import PROBE_POINTS, build_probes, fit
from export.compare import MEDIAN_BAR, WORST_BAR
from export.runtimes import engines
from models.experiments.report import Claim, Found, markdown_table
from models.progress import progress

HEAD_DIM, FORMAT = 32, "fp32"


@dataclass(frozen=True)
class Setting:
    """Depths in layers at a budget of parameters; the passes that are timed."""

    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    budget: int = 60_000_000  # of 20 million, a step can take 1 ms, and the law is made for longer passes
    vocab_size: int = 1024
    context: int = 1024
    prompt: int = 128
    rounds: int = 9
    seconds: float = 90.0

    @property
    def points(self) -> list[Point]:
        """A decode step over the whole context, and a prompt."""
        return [Point(1, 1, self.context), Point(1, self.prompt, self.context)]


@dataclass(frozen=True)
class Row:
    """One model: its counts, and of each point the predicted seconds and the measured ones."""

    config: ModelConfig
    flops: list[int]
    kv_bytes: int
    predicted: list[float]
    timings: list[Timing]

    @property
    def depth(self) -> int:
        return len(self.config.decoder.layers)

    @property
    def measured(self) -> list[float]:
        return [timing.median for timing in self.timings]

    @property
    def errors(self) -> list[float]:
        """Relative: +0.1 is predicted 10% too slow."""
        return [p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True)]


@dataclass(frozen=True)
class Result:
    """The models from shallow to deep."""

    setting: Setting
    rows: list[Row]


def config(setting: Setting, depth: int) -> ModelConfig:
    """A llama with whole heads, a feed-forward of about 8/3 of the width, and parameters near the budget.

    The width is rounded to heads; the feed-forward then takes what is left.
    """
    heads = max(1, round((setting.budget / (12 * depth)) ** 0.5 / HEAD_DIM))
    keys = {"model_type": "llama", "vocab_size": setting.vocab_size, "hidden_size": heads * HEAD_DIM}
    keys |= {"num_hidden_layers": depth, "num_attention_heads": heads, "tie_word_embeddings": True}
    keys |= {"max_position_embeddings": setting.context}

    def model(width: int) -> ModelConfig:
        return config_from_keys(keys | {"intermediate_size": width}, name=f"{depth} layers")

    a_column = parameters(model(2)) - parameters(model(1))
    return model(max(1, 1 + round((setting.budget - parameters(model(1))) / a_column)))


def chain(config: ModelConfig) -> int:
    """Matrix products that must wait for one another: query, scores, context, output, up, down of each layer; head."""
    return 6 * len(config.decoder.layers) + 1


def run(setting: Setting) -> Result:
    """Export all, let their passes and the probes' take turns, fit, predict."""
    configs = [config(setting, depth) for depth in setting.depths]
    with tempfile.TemporaryDirectory() as folder:
        probes = build_probes(Path(folder) / "probes", FORMAT)
        targets = [
            build(one, Path(folder) / f"target-{number}", FORMAT, (setting.context,))
            for number, one in enumerate(progress(configs, "export"))
        ]
        wanted = [(probe, PROBE_POINTS[name]) for name, probe in probes.items()]
        timings = _timed(wanted + [(target, setting.points) for target in targets], setting)
    seen = [(probe, timing) for probe, found in zip(probes.values(), timings, strict=False) for timing in found]
    machine, _ = fit(seen)
    found = zip(configs, timings[len(probes) :], strict=True)
    return Result(setting, [row(one, measured, setting, machine) for one, measured in found])


def _timed(wanted: list[tuple[Build, list[Point]]], setting: Setting) -> list[list[Timing]]:
    """Every point of every build, in turns."""
    passes = [one for made, points in wanted for one in prepare(made, engines(made, "onnxruntime"), points)]
    turns = iter(measure(passes, setting.rounds, setting.seconds))
    return [[Timing(point, tuple(next(turns))) for point in points] for _, points in wanted]


def row(config: ModelConfig, timings: list[Timing], setting: Setting, machine: Machine) -> Row:
    """The counts of a model, and its predicted seconds beside the measured ones."""
    prefill, decode = passes(config, 1, setting.prompt, setting.context, last_logits=True)
    flops = [total(decode).flops, total(prefill).flops]
    step = bound(config)[1]
    # The engine attends over the whole static cache in either pass.
    runs = [Pass(p.phase, {"B": p.batch, "T": p.tokens, "S": p.context, "R": 1}, step) for p in setting.points]
    predicted = [predict(one, machine, precision(FORMAT)) for one in runs]
    return Row(config, flops, 4 * sum(cache_elements(step, 1, setting.context)), predicted, timings)


def claims(result: Result) -> list[Claim]:
    """Equal size, and what depth costs."""
    rows = result.rows
    first, last = rows[0], rows[-1]
    sizes = [parameters(row.config) for row in rows]
    apart = max(sizes) / min(sizes) - 1
    cache = last.kv_bytes / first.kv_bytes
    expected = last.depth * last.config.hidden_size / (first.depth * first.config.hidden_size)
    errors = np.abs([error for row in rows for error in row.errors])
    middle, worst = float(np.median(errors)), float(errors.max())
    flops = last.flops[0] / first.flops[0]
    slower = [last.measured[0] / first.measured[0], last.predicted[0] / first.predicted[0]]
    return [
        Claim("parameters equal within 1%", f"{apart:.2%} apart", apart <= 0.01),
        Claim(
            f"the cache of {last.depth} layers over that of {first.depth}: as layers · width, {expected:.3g}",
            f"{cache:.3g}",
            cache == expected,
        ),
        Claim(
            "a decode step of the deepest takes more FLOPs: attention grows with the cache", f"{flops:.2f}x", flops > 1
        ),
        Claim("the deepest is the slower at a decode step, measured", f"{slower[0]:.2f}x", slower[0] > 1, timed=True),
        Claim("and predicted", f"{slower[1]:.2f}x", slower[1] > 1, timed=True),
        Claim(
            f"prediction, median and worst |error| within {MEDIAN_BAR:.0%} and {WORST_BAR:.0%}",
            f"{middle:.1%}, {worst:.1%}",
            middle <= MEDIAN_BAR and worst <= WORST_BAR,
            timed=True,
        ),
    ]


def _shapes(result: Result) -> str:
    rows: list[list[Any]] = []
    for row in result.rows:
        c = row.config
        block = c.decoder.layers[0]
        shape = [row.depth, c.hidden_size, block.self_attn.num_attention_heads, block.mlp.intermediate_size]
        counts = [scaled(count, "FLOPs") for count in row.flops]
        rows.append([*shape, parameters(c), chain(c), *counts, scaled(row.kv_bytes, "B")])
    headers = ["layers", "width", "heads", "feed-forward", "parameters", "products in a chain", "decode", "prefill"]
    return markdown_table(rows, [*headers, "KV cache"])


def _times(result: Result) -> str:
    rows = []
    for row in result.rows:
        of_point = zip(row.predicted, row.measured, row.errors, strict=True)
        rows.append([row.depth, *(cell for p, m, e in of_point for cell in (duration(p), duration(m), f"{e:+.1%}"))])
    headers = [f"{phase} {what}" for phase in ("decode", "prefill") for what in ("predicted", "measured", "error")]
    return markdown_table(rows, ["layers", *headers])


def report(result: Result) -> Found:
    """Shapes and counts, then times."""
    s = result.setting
    body = [
        f"Llamas with heads of {HEAD_DIM}, a tied head and {s.vocab_size:,} words, one sequence, fp32. decode: one "
        f"token over {s.context:,}; prefill: {s.prompt} tokens. FLOPs count visible pairs; the cache has {s.context:,} "
        "tokens.",
        _shapes(result),
        "Depth costs a longer chain of products that wait for one another, and at equal parameters layers · width, so "
        "the cache and attention, grow as the root of the depth. The matrices' FLOPs are equal.",
        "## Seconds of a pass on ONNX Runtime",
        _times(result),
        "Predicted by the law of `archcalc.latency`, fitted to the two probes of `export.calibrate` in the same "
        "run; all passes take turns, medians of turns. What deeper models learn better is not measured here.",
    ]
    return Found(
        "Depth and width: equal parameters, from shallow to deep",
        body,
        claims(result),
        lambda figure: draw(result, figure),
        "Measured and predicted time of a pass, and the KV cache, over depth at equal parameters",
        "0 of the weights",
    )


def draw(result: Result, figure) -> None:
    depths = [row.depth for row in result.rows]
    times, cache = figure.subplots(1, 2)
    for index, phase in enumerate(("decode", "prefill")):
        color = f"C{index}"
        times.plot(
            depths, [1e3 * r.measured[index] for r in result.rows], "o-", color=color, label=f"{phase}, measured"
        )
        times.plot(depths, [1e3 * r.predicted[index] for r in result.rows], "x--", color=color, label="predicted")
    times.set(yscale="log", ylabel="milliseconds", title="time of a pass")
    times.legend()
    cache.plot(depths, [row.kv_bytes / 1e6 for row in result.rows], "o-", color="C2")
    cache.set(ylim=(0, None), ylabel="MB", title="KV cache")
    for axes in (times, cache):
        axes.set(xscale="log", xlabel="layers")
        axes.set_xticks(depths, depths)
        axes.minorticks_off()


def experiment() -> Found:
    return report(run(Setting()))
