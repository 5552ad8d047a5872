"""`export verify`: an engine against PyTorch in fp32: logits, cache and greedy tokens, in a table of cases.

Both sides run the tokens that fp32 chooses (teacher forcing), and each step's choices are compared: as long as all
agree that is each side's own greedy loop, and after a tie the comparison goes on, where two loops would each go on
with another text.

ONNX Runtime on a CPU computes fp16 norms in fp32 and so hides an overflow that a GPU would have. So the largest
activation of the fp32 model is also held against the largest number of the export's format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from archcalc.config import Recurrent
from archcalc.errors import ArchcalcError
from export.build import Build
from export.divergence import Divergence, first_divergence
from export.overflow import LargestActivation
from export.precision import rounded
from export.runtimes import engines
from export.tolerance import Tolerance
from export.verify_cases import STEPS, Case, Pass, cases, reference_pass
from models import DecoderOnly
from models.cache import Cache
from models.progress import progress

ROUNDED_STEPS = 8  # decode passes of a case that only shows what rounding costs


@dataclass
class CaseResult:
    """What was found in one case. Errors are in the unit of the tolerance's `limit`; `stopped` is empty or says why.

    Args:
        ties: tokens that differ where fp32's own logits of the two are closer than twice the tolerance.
        wrong_tokens: a line for each other token that differs. passes: what was run, for a rerun.
        failed_pass: the first pass whose logits or tokens disagree, the last if only the cache does.
    """

    case: Case
    tolerance: Tolerance
    logits: float = 0.0
    logits_at: str = ""
    cache: float = 0.0
    cache_at: str = ""
    tokens: int = 0
    tokens_agreed: int = 0
    ties: int = 0
    wrong_tokens: list[str] = field(default_factory=list)
    stopped: str = ""
    passes: list[Pass] = field(default_factory=list)
    failed_pass: int | None = None

    @property
    def passed(self) -> bool:
        limit = self.tolerance.limit
        return self.logits <= limit and self.cache <= limit and not self.wrong_tokens and not self.stopped


@dataclass
class Verdict:
    """What was compared over a cache of `capacity` tokens; `passed` is the conclusion, `problems` say why not."""

    capacity: int
    bound: Tolerance
    reason: str
    cases: list[CaseResult] = field(default_factory=list)
    largest_activation: float = 0.0
    largest_activation_at: str = ""
    largest_allowed: float = 0.0
    divergence: Divergence | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def tolerance(self) -> float:
        return self.bound.limit

    @property
    def worst_logits(self) -> float:
        return max(case.logits for case in self.cases)

    @property
    def worst_cache(self) -> float:
        return max(case.cache for case in self.cases)

    @property
    def tokens(self) -> int:
        return sum(case.tokens for case in self.cases)

    @property
    def tokens_agreed(self) -> int:
        return sum(case.tokens_agreed for case in self.cases)

    @property
    def ties(self) -> int:
        return sum(case.ties for case in self.cases)


def verify(
    build: Build,
    engine,
    model: DecoderOnly,
    steps: int = STEPS,
    atol: float | None = None,
    rtol: float | None = None,
) -> Verdict:
    """Compare every case of `export.verify_cases`, and find the first layer that diverges where one fails.

    Args:
        engine: any of `export.runtimes`. model: the reference in fp32 with the build's weights.
        steps: decode passes of a case, fewer where the cache has no room for them.
        atol, rtol: in place of the precision's tolerance; see `Tolerance`.
    """
    kind = build.precision
    bound = Tolerance(kind.tolerance, atol, rtol)
    verdict = Verdict(engine.capacity, bound, kind.reason if bound.is_default else str(bound))
    table, compare = comparison(build, engine, steps)
    with LargestActivation(model) as largest:
        for case in progress(table, "verify"):
            verdict.cases.append(compare(case, build, engine, model, bound))
    verdict.largest_activation, verdict.largest_activation_at = largest.value, largest.where
    verdict.largest_allowed = kind.largest
    verdict.problems = problems_of(verdict, kind.name)
    failed = next((case for case in verdict.cases if case.failed_pass is not None), None)
    if failed and not build.config.encoder:  # there the cache's place is named, cross keys and values first
        passes = failed.passes[: failed.failed_pass + 1]
        verdict.divergence = first_divergence(build, engine, model, passes, bound)
        verdict.problems.append(f"first diverging layer: {verdict.divergence} ({failed.case.name})")
    return verdict


def verify_both(build: Build, backend: str, capacity: int | None, model, **bounds) -> list[Verdict]:
    """`verify` of the engine and, where ONNX Runtime rounds activations to multiply integers, of one that does not.

    The second shows that the graph is right, by the tolerance of its activations; the first what rounding costs.
    """
    scheme = build.precision.quantization
    if backend != "onnxruntime" or scheme is None or scheme.dynamic:
        return [verify(build, engines(build, backend)(capacity), model, **bounds)]
    exact = verify(build, engines(build, backend, exact=True)(capacity), model, **bounds)
    rounding = replace(build, precision=rounded(build.precision))
    return [exact, verify(rounding, engines(build, backend)(capacity), model, steps=ROUNDED_STEPS, **bounds)]


def comparison(build: Build, engine, steps: int) -> tuple[list[Case], Callable]:
    """The cases of a model of this kind, and the function that compares one."""
    from export.verify_encoder import after_source, encoder_cases, encoder_output  # they compare by this module

    if build.config.decoder is None:
        return encoder_cases(build.config), encoder_output
    fused = build.manifest["target"] == "onnxruntime"
    return cases(build.config, engine.capacity, steps, fused), after_source if build.config.encoder else compare_case


def problems_of(verdict: Verdict, precision: str) -> list[str]:
    """One line for each thing that is wrong, whatever the number of cases that show it."""
    found, limit, total = [], verdict.tolerance, len(verdict.cases)
    if not verdict.largest_activation <= verdict.largest_allowed:
        found.append(
            f"an activation reaches {verdict.largest_activation:.4g} in {verdict.largest_activation_at}; "
            f"{precision} ends at {verdict.largest_allowed:.4g}"
        )
    for what, name in (("logits", "logits"), ("cache", "cache entries")):
        worst = max(verdict.cases, key=lambda case, what=what: getattr(case, what))
        failing = sum(not getattr(case, what) <= limit for case in verdict.cases)
        if failing:
            found.append(
                f"{name} differ by {getattr(worst, what):.3g}, more than {limit:g}, in {failing} of {total} cases; "
                f"most in {worst.case.name}, {getattr(worst, f'{what}_at')}"
            )
    wrong = [(case.case.name, line) for case in verdict.cases for line in case.wrong_tokens]
    if wrong:
        found.append(f"{len(wrong)} of {verdict.tokens} greedy tokens differ; first in {wrong[0][0]}: {wrong[0][1]}")
    return found + [f"{case.case.name}: stopped: {case.stopped}" for case in verdict.cases if case.stopped]


def compare_case(case: Case, build: Build, engine, model: DecoderOnly, bound: Tolerance) -> CaseResult:
    """Run one case, first on the reference and then on the engine: their threads would slow each other by turns."""
    found = CaseResult(case, bound)
    wanted, cache = _reference(case, build, engine.capacity, model)
    found.passes = [one for one, _ in wanted]
    try:
        theirs = called(engine.new_cache, len(case.lengths))
        for step, (one, want_BRV) in enumerate(wanted):
            _compare_pass(found, step, one, called(engine.run, *one.inputs, theirs), want_BRV)
        _compare_cache(found, build, engine, theirs, cache)
    except ArchcalcError as error:
        found.stopped = str(error)
    return found


@torch.no_grad()
def _reference(case: Case, build: Build, capacity: int, model: DecoderOnly) -> tuple[list, Cache]:
    """Each pass with its logits [B, R, V], and the cache after the last; a step's tokens are the likeliest so far."""
    cache, found = Cache.empty(build.config, len(case.lengths), capacity), []
    one = case.prefill(build.config.vocab_size)
    for step in range(case.steps + 1):
        found.append((one, reference_pass(model, one, cache)))
        one = case.decode(step, found[-1][1][:, -1].argmax(-1))
    return found, cache


class EngineFailed(ArchcalcError):
    """What an engine's library raised, in one line."""


def called(function: Callable, *arguments):
    """What the engine answers. Raises: ArchcalcError for whatever its library raises."""
    try:
        return function(*arguments)
    except ArchcalcError:
        raise
    except Exception as error:  # the libraries' own exceptions derive from Exception alone
        raise EngineFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _compare_pass(found: CaseResult, step: int, one: Pass, got_BRV: np.ndarray, want_BRV: np.ndarray) -> None:
    """Logits of real tokens, and the tokens that follow."""
    if got_BRV.shape != want_BRV.shape:
        raise EngineFailed(f"logits have shape {got_BRV.shape}, not {want_BRV.shape}")
    seen_BR = one.seen_BR
    got, want = got_BRV[seen_BR], want_BRV[seen_BR]
    errors = found.tolerance.errors(got, want)
    worst = float(errors.max())
    if worst > found.logits:
        row = np.argwhere(seen_BR)[errors.max(-1).argmax()][0]
        found.logits, found.logits_at = worst, f"step {step}, row {row}"
    wrong = _wrong_tokens(found, got_BRV[:, -1], want_BRV[:, -1], float(np.abs(want).max()))
    found.wrong_tokens += [f"step {step}, {line}" for line in wrong]
    if found.failed_pass is None and (worst > found.tolerance.limit or wrong):
        found.failed_pass = step


def _wrong_tokens(found: CaseResult, got_BV: np.ndarray, want_BV: np.ndarray, scale: float) -> list[str]:
    """Count each row's likeliest token as equal or a tie; a line for each that is neither."""
    wrong = []
    for row, (got_V, want_V) in enumerate(zip(got_BV, want_BV, strict=True)):
        ours, theirs = int(want_V.argmax()), int(got_V.argmax())
        gap = float(want_V[ours] - want_V[theirs])
        room = float(found.tolerance.allowed(want_V[[ours, theirs]], scale).sum())
        found.tokens += 1
        if ours == theirs:
            found.tokens_agreed += 1
        elif gap < room:
            found.ties += 1
        else:
            line = f"row {row}: {theirs} in place of {ours}, whose logit is {gap:.3g} higher; a tie is below {room:.3g}"
            wrong.append(line)
    return wrong


def _compare_cache(found: CaseResult, build: Build, engine, theirs, cache: Cache) -> None:
    """Every layer's slots that hold real tokens, and those that must still be empty; a recurrent state as a whole.

    The place that is kept is in the first tensor beyond the tolerance, for it spoils those after it; else in the worst.
    """
    slots_BC, limit = found.case.compared_BC(engine.capacity), found.tolerance.limit
    ours = [
        (tensor.numpy(), isinstance(block.self_attn, Recurrent))
        for block, layer in zip(build.config.decoder.layers, cache.layers, strict=True)
        for tensor in layer.tensors
    ]
    for state, (want, recurrent), got in zip(engine.caches, ours, called(engine.cache_arrays, theirs), strict=True):
        if not recurrent:
            compared = slots_BC[:, None, :, None]
            got, want = np.where(compared, got, 0), np.where(compared, want, 0)
        errors = found.tolerance.errors(got, want)
        worst = float(errors.max())
        if found.cache <= limit and worst >= found.cache:
            row, *place = np.unravel_index(errors.argmax(), errors.shape)
            found.cache_at = f"{state.present}, row {row}" + ("" if recurrent else f", slot {place[1]}")
        found.cache = max(found.cache, worst)
    if found.failed_pass is None and found.cache > limit:
        found.failed_pass = len(found.passes) - 1
