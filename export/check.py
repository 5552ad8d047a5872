"""`export check`: build, verify, count, calibrate, measure and compare in one run. Disagreement is exit code 1."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archcalc.config import ModelConfig
from archcalc.latency import Machine
from archcalc.render import table
from archcalc.units import duration
from export import compare
from export.bench import Point, Timing, measure, prepare
from export.build import Build, build, versions
from export.calibrate import PROBE_POINTS, build_probes, fit
from export.compare import Exact, Latency
from export.generate import greedy
from export.reference import described, reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import Verdict, verify

PROMPT = "Why is the sky blue? Explain it to a child."
NEW_TOKENS = 64


@dataclass(frozen=True)
class Comparison:
    """A build's counts and latency, derived and found."""

    build: Build
    exact: list[Exact]
    latency: list[Latency]
    machine: Machine
    probes: list[tuple[str, Timing, float]]  # the probe's name, what it took, the error the fit left

    @property
    def problems(self) -> list[str]:
        found = [
            f"{row.quantity}: derived {row.predicted:,}, found {row.measured:,}" for row in self.exact if not row.passed
        ]
        if not compare.latency_passed(self.latency):
            found.append("latency: predicted and measured differ by more than the bars")
        return found


@dataclass(frozen=True)
class Check:
    """Everything that a check found; `problems` is empty if all of it agrees."""

    verdict: Verdict
    text: tuple[str, int, int] | None  # what was generated, tokens compared, tokens equal
    comparison: Comparison

    @property
    def problems(self) -> list[str]:
        found = [f"verify: {problem}" for problem in self.verdict.problems]
        if self.text and self.text[1] != self.text[2]:
            found.append(f"greedy text: {self.text[2]} of {self.text[1]} tokens equal PyTorch's")
        return found + self.comparison.problems


def points(capacities: tuple[int, ...]) -> list[Point]:
    """Twelve points for the shortest and the longest cache of a build; none is a probe's."""
    short, longest = min(capacities), max(capacities)
    decode = [(1, short), (1, longest), (3, short), (2, longest), (6, longest)]
    share = [(1, 0.1, short), (1, 0.05, longest), (1, 0.375, short), (1, 0.75, short), (2, 0.0625, longest)]
    share += [(3, 0.15, short), (1, 0.4, longest)]
    prefill = [Point(batch, max(2, int(part * context)), context) for batch, part, context in share]
    return [Point(batch, 1, context) for batch, context in decode] + prefill


def compare_build(target: Build, probe_folder: Path, engine=None) -> Comparison:
    """Count, calibrate on the probes, measure all in turns, predict. ONNX Runtime."""
    engine = engine or functools.cache(functools.partial(OnnxRuntimeEngine, target))
    held_out = points(target.capacities)
    counts = compare.exact(target, engine(max(target.capacities)))
    seen, passes = [], []
    for name, probe in build_probes(probe_folder, target.precision.name).items():
        seen += [(probe, point) for point in PROBE_POINTS[name]]
        passes += prepare(probe, functools.cache(functools.partial(OnnxRuntimeEngine, probe)), PROBE_POINTS[name])
    samples = measure(passes + prepare(target, engine, held_out))
    calibration = [(p, Timing(point, tuple(s))) for (p, point), s in zip(seen, samples, strict=False)]
    measured = [Timing(point, tuple(s)) for point, s in zip(held_out, samples[len(seen) :], strict=True)]
    machine, left = fit(calibration)
    rows = compare.latency(target, measured, machine)
    probes = [(p.config.name, timing, error) for (p, timing), error in zip(calibration, left, strict=True)]
    return Comparison(target, counts, rows, machine, probes)


def check(config: ModelConfig, out: Path, precision: str = "fp32", weights: str = "auto", context: int = 1024) -> Check:
    """Run the whole check of a model with ONNX Runtime in the folder `out`.

    Args:
        context: the longer of the two caches, tokens a sequence; less if the model has fewer positions.
    """
    longest = min(context, config.max_position_embeddings)
    model, origin = reference(config, weights)
    target = build(config, out / "model", precision, (longest // 4, longest), model, origin)
    engine = functools.cache(functools.partial(OnnxRuntimeEngine, target))
    verdict = verify(target, engine(longest), model)
    text = _text(model, engine(longest), origin, weights)
    return Check(verdict, text, compare_build(target, out / "probes", engine))


def _text(model, engine, origin: dict[str, Any], weights: str) -> tuple[str, int, int] | None:
    """With a real tokenizer: the engine's greedy answer, and how much of it is PyTorch's."""
    if not str(origin.get("name", "")).endswith(".gguf"):
        return None
    from export.reference import weights_file
    from models.generate import greedy as greedy_torch
    from models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(weights_file(engine.build.config, weights))
    prompt = tokenizer.chat(PROMPT)
    new = min(NEW_TOKENS, engine.capacity - len(prompt))
    mine, theirs = greedy(engine, [prompt], new)[0], greedy_torch(model, [prompt], new)[0]
    return tokenizer.decode(mine), len(theirs), sum(a == b for a, b in zip(mine, theirs, strict=False))


def machine_name() -> str:
    """The processor, as the system names it."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    )
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    found = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else "not a git checkout"


def comparison_rows(found: Comparison) -> list[list[Any]]:
    """Rows of counts and latencies: quantity, predicted, measured, verdict, and why or how."""
    passed = {True: "equal", False: "DIFFERS"}
    rows: list[list[Any]] = [[e.quantity, e.predicted, e.measured, passed[e.passed], e.how] for e in found.exact]
    for row in found.latency:
        point = row.timing.point
        spread = f"p90/p10 {row.timing.quantile(0.9) / row.timing.quantile(0.1):.2f}"
        times = [duration(row.predicted), duration(row.timing.median)]
        rows.append([_named(point), *times, f"{row.error:+.1%}", spread])
    errors = np.abs([row.error for row in found.latency])
    bars = f"bars {compare.MEDIAN_BAR:.0%} and {compare.WORST_BAR:.0%}: {compare.BAR_REASON}"
    outcome = "within" if compare.latency_passed(found.latency) else "DIFFERS"
    rows.append(
        ["latency, median and worst |error|", "", f"{np.median(errors):.1%}, {errors.max():.1%}", outcome, bars]
    )
    return rows


def _named(point: Point) -> str:
    return f"{point.phase} B={point.batch} T={point.tokens} S={point.context}"


def verdict_rows(found: Check) -> list[list[Any]]:
    """Rows of what was computed, in the same columns."""
    verdict, rows = found.verdict, []
    for what, worst in (("logits", verdict.worst_logits), ("cache", verdict.worst_cache)):
        inside = "within" if worst <= verdict.tolerance else "DIFFERS"
        rows.append([f"{what} against PyTorch fp32", "", f"{worst:.2g}", inside, f"of {verdict.tolerance:g}: relative"])
    if found.text:
        same = "equal" if found.text[1] == found.text[2] else "DIFFERS"
        rows.append(["greedy tokens", found.text[1], found.text[2], same, "PyTorch's and the engine's"])
    return rows


HEADERS = ["quantity", "predicted", "measured", "verdict", "why"]


def conclusion(problems: list[str]) -> str:
    return "Disagreement: " + "; ".join(problems) if problems else "Everything agrees."


def rendered(found: Check, command: str, style: str = "table") -> str:
    """The check's table, with where and how it was made."""
    compared = found.comparison
    config, origin = compared.build.config, compared.build.manifest["weights"]
    title = f"{config.name}, {compared.build.precision.name}, ONNX Runtime on a CPU, {described(origin)}"
    main = table(verdict_rows(found) + comparison_rows(compared), HEADERS, style)
    lines = [f"# Check of {title}" if style == "markdown" else title, "", main, ""]
    if style == "markdown":
        lines += _appendix(compared, command)
    if found.text:
        lines += [f'"{PROMPT}" → "{" ".join(found.text[0].split())}"', ""]
    return "\n".join([*lines, conclusion(found.problems)])


def _appendix(found: Comparison, command: str) -> list[str]:
    law = [[name, f"{value:.4g}"] for name, value in found.machine.as_dict().items()]
    probe = [[f"{name}: {_named(t.point)}", duration(t.median), f"{left:+.1%}"] for name, t, left in found.probes]
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [
        "Latency is predicted by the law of `archcalc.latency`, fitted in the same run to two probes: other models "
        "of other depth and width, at other batches, prompts and contexts. All points take turns; a point's time is "
        "the median of its samples.",
        "",
        table(law, ["the machine's law", "value"], "markdown"),
        "",
        table(probe, ["calibration point", "measured", "left by the fit"], "markdown"),
        "",
        f"Command `{command}`; commit {_commit()}; {machine_name()}; {datetime.date.today()}; {packages}.",
        "",
    ]
