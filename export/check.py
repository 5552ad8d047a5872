"""`export check`: build, verify, count, calibrate, measure and compare in one run. Disagreement is exit code 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archcalc.config import ModelConfig
from archcalc.render import table
from archcalc.units import duration
from export.as_stored import give_stored_numbers
from export.build import PACKAGES, build
from export.compare import HEADERS, Comparison, compare_build, comparison_rows, conclusion, named
from export.expressible import check_exportable
from export.generate import greedy
from export.precision import ExportPrecision
from export.reference import described, reference, weights_file
from export.runtimes import BACKENDS, check_backend, engines
from export.verify import Verdict, verify_both
from models.generate import greedy as greedy_torch
from models.gguf_file import WeightsError
from models.provenance import made

PROMPT = "Why is the sky blue? Explain it to a child."
NEW_TOKENS = 64


@dataclass(frozen=True)
class Check:
    """Everything that a check found; `problems` is empty if all of it agrees."""

    verdicts: list[Verdict]
    text: tuple[str, int, int] | None  # what was generated, tokens compared, tokens equal
    comparison: Comparison

    @property
    def problems(self) -> list[str]:
        found = [f"verify: {problem}" for verdict in self.verdicts for problem in verdict.problems]
        if self.text and self.text[1] != self.text[2]:
            found.append(f"greedy text: {self.text[2]} of {self.text[1]} tokens equal PyTorch's")
        return found + self.comparison.problems


def check(
    config: ModelConfig,
    out: Path,
    precision: str | ExportPrecision = "fp32",
    weights: str = "auto",
    backend: str = "onnxruntime",
    context: int = 1024,
    target: str = "any",
) -> Check:
    """Run the whole check of a model in the folder `out`.

    Args:
        backend: one of `export.runtimes.BACKENDS`.
        context: the longer of the two caches, tokens a sequence; less if the model has fewer positions.
        target: one of `export.build.TARGETS`.
    """
    check_exportable(config)
    check_backend(backend)
    longest = min(context, config.max_position_embeddings) if config.decoder else None
    capacities = (longest // 4, longest) if longest else None
    model, origin = reference(config, weights)
    target = build(config, out / "model", precision, capacities, model, origin, target=target)
    give_stored_numbers(model, target)
    engine = engines(target, backend, compile_first=True)
    verdicts = verify_both(target, backend, longest, model)
    exact = engines(target, backend, exact=True)(longest) if len(verdicts) > 1 else engine(longest)
    text = _text(model, exact, origin, weights)
    return Check(verdicts, text, compare_build(target, out / "probes", backend, engine))


def _text(model, engine, origin: dict[str, Any], weights: str) -> tuple[str, int, int] | None:
    """Of a decoder alone with a real tokenizer: the engine's greedy answer, and how much of it is PyTorch's."""
    if engine.build.config.encoder or not str(origin.get("name", "")).endswith(".gguf"):
        return None
    from models.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_gguf(weights_file(engine.build.config, weights))
    except WeightsError:
        return None  # another kind of tokenizer: no reason not to check the rest
    prompt = tokenizer.chat(PROMPT)
    new = min(NEW_TOKENS, engine.capacity - len(prompt))
    mine, theirs = greedy(engine, [prompt], new)[0], greedy_torch(model, [prompt], new)[0]
    return tokenizer.decode(mine), len(theirs), sum(a == b for a, b in zip(mine, theirs, strict=False))


def _untold(config: ModelConfig) -> str:
    """Why there is no text."""
    if not config.decoder:
        return "an encoder writes none"
    if config.encoder:
        return "no tokenizer is read beside an encoder; greedy targets of random sources were verified"
    return "the weights come without a tokenizer that is understood"


def verdict_rows(found: Check) -> list[list[Any]]:
    """Rows of what was computed, in the same columns."""
    rows, config = [], found.comparison.build.config
    for how, verdict in zip(("", ", activations rounded"), found.verdicts, strict=False):
        made = [("logits" if config.head.has_logits else "output", verdict.worst_logits)]
        for what, worst in made + ([("cache", verdict.worst_cache)] if config.decoder else []):
            inside = "within" if worst <= verdict.tolerance else "DIFFERS"
            why = f"of {verdict.tolerance:g}: relative"
            rows.append([f"{what} against PyTorch fp32{how}", "", f"{worst:.2g}", inside, why])
    if found.text:
        same = "equal" if found.text[1] == found.text[2] else "DIFFERS"
        rows.append(["greedy tokens", found.text[1], found.text[2], same, "PyTorch's and the engine's"])
    else:
        rows.append(["greedy text", "", "", "skipped", _untold(found.comparison.build.config)])
    return rows


def rendered(found: Check, command: str, style: str = "table") -> str:
    """The check's table, with where and how it was made."""
    compared = found.comparison
    config, origin = compared.build.config, compared.build.manifest["weights"]
    title = f"{config.name}, {compared.build.precision.name}, {BACKENDS[compared.backend]}, {described(origin)}"
    main = table(verdict_rows(found) + comparison_rows(compared), HEADERS, style)
    lines = [f"# Check of {title}" if style == "markdown" else title, "", main, ""]
    if style == "markdown":
        lines += _appendix(compared, command)
    if found.text:
        lines += [f'"{PROMPT}" → "{" ".join(found.text[0].split())}"', ""]
    return "\n".join([*lines, conclusion(found.problems)])


def _appendix(found: Comparison, command: str) -> list[str]:
    law = [[name, f"{value:.4g}"] for name, value in found.machine.as_dict().items()]
    probe = [[f"{name}: {named(t.point)}", duration(t.median), f"{left:+.1%}"] for name, t, left in found.probes]
    return [
        "Latency is predicted by the law of `archcalc.latency`, fitted in the same run to two probes: other models "
        "of other depth and width, at other batches, prompts and contexts. All points take turns; a point's time is "
        "the median of its turns.",
        "",
        table(law, ["the machine's law", "value"], "markdown"),
        "",
        table(probe, ["calibration point", "measured", "left by the fit"], "markdown"),
        "",
        made(command, PACKAGES),
        "",
    ]
