"""What `export verify` found, as JSON: also where the builds differ, or nothing could be compared."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archcalc.files import replaced_file
from export.build import PACKAGES, Build
from export.files import ExportError
from export.precision import ExportPrecision
from export.verify import CaseResult, Verdict
from models.provenance import commit, machine, versions

FORMAT = 1


def default_path(build: Build) -> Path:
    """Beside the build's folder, which holds nothing but the build."""
    folder = Path(os.path.abspath(build.folder))
    return folder.with_name(f"{folder.name}-verify.json")


def lines(found: Verdict, name: str, precision: ExportPrecision) -> list[str]:
    """A verdict for people."""
    errors = f"logits differ by {found.worst_logits:.3g}, cache by {found.worst_cache:.3g}"
    if found.bound.is_default:
        told = [f"{name}: {errors}, relative", f"  tolerance {found.tolerance:g} of {precision.name}: {found.reason}"]
    else:
        told = [f"{name}: {errors}, as shares of the tolerance"]
        told.append(f"  tolerance {found.bound}, in place of {precision.name}'s {precision.tolerance:g}")
    ties = f", {found.ties} more are ties within the tolerance" if found.ties else ""
    told.append(f"  greedy tokens equal: {found.tokens_agreed} of {found.tokens}{ties}")
    largest = f"{found.largest_activation:.4g} of {found.largest_allowed:.4g}"
    told.append(f"  largest activation {largest}, in {found.largest_activation_at}")
    return told + [f"  DIFFERS: {problem}" for problem in found.problems]


def _case(found: CaseResult) -> dict[str, Any]:
    case = found.case
    return {
        "name": case.name,
        "passed": found.passed,
        "stopped": found.stopped or None,
        "prompt_tokens": list(case.lengths),
        "padded_to": case.slots,
        "padding": "in front" if case.in_front else "behind",
        "decode_steps": case.steps,
        "logits_error": found.logits,
        "logits_error_at": found.logits_at,
        "cache_error": found.cache,
        "cache_error_at": found.cache_at,
        "tokens": found.tokens,
        "tokens_agreed": found.tokens_agreed,
        "tokens_tied": found.ties,
        "tokens_wrong": found.wrong_tokens,
    }


def _graph(found: Verdict) -> dict[str, Any]:
    divergence = found.divergence
    return {
        "capacity": found.capacity,
        "passed": found.passed,
        "problems": found.problems,
        "tolerance": {"rule": str(found.bound), "limit": found.tolerance, "reason": found.reason},
        "largest_activation": found.largest_activation,
        "largest_activation_at": found.largest_activation_at,
        "largest_allowed": found.largest_allowed,
        "first_diverging_layer": divergence and asdict(divergence),
        "cases": [_case(case) for case in found.cases],
    }


def report(build: Build, backend: str, verdicts: list[Verdict], stopped: str = "") -> dict[str, Any]:
    """The report's content; numbers that are not finite as the strings `inf` and `nan`, which JSON has no numbers for.

    Args:
        verdicts: one for each graph that was compared. stopped: why the others were not.
    """
    manifest = build.manifest
    found = {
        "format": FORMAT,
        "passed": not stopped and all(verdict.passed for verdict in verdicts),
        "stopped": stopped or None,
        "build": {key: manifest[key] for key in ("name", "precision", "capacities", "weights", "files")},
        "backend": backend,
        "made": {"commit": commit(), "machine": machine(), "versions": versions(PACKAGES)},
        "graphs": [_graph(verdict) for verdict in verdicts],
    }
    return _finite(found)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_report(path: Path, content: dict[str, Any]) -> None:
    """Write the report whole or not at all. Raises: ExportError where that is not possible."""
    try:
        with replaced_file(path) as new:
            new.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise ExportError(f"json={path}: cannot be written, {error.strerror}; give another file by --json") from None
