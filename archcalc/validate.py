"""`archcalc validate`: what the laws predict against what was measured, on the rows that no fit has seen."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any, NamedTuple

from archcalc.errors import ArchcalcError, one_of
from archcalc.laws import tables
from archcalc.laws.fitted import constants
from archcalc.laws.problems import problems
from archcalc.render import table

TITLES = {
    "gemm": "matrix products, n and k from 512",
    "prefill": "attention of prompts",
    "decode": "attention of a decode step",
    "latent": "latent attention of a decode step",
    "experts": "routed experts",
    "all_reduce": "all-reduce",
}
# What a law must reach, (median, 90th percentile) of |error|, by law and device; other formats of products below.
BARS = {
    "h100-sxm": (0.05, 0.15), "h200": (0.05, 0.15), "a100-80gb-sxm": (0.08, 0.22), "b200": (0.08, 0.22),
    "l40s": (0.10, 0.30),
}  # fmt: skip
FORMAT_BARS = {"fp8": (0.07, 0.20), "fp4": (0.12, 0.35)}
MEDIAN_BAR = 0.15  # of experts and collectives, whose 90th percentile has none


class Row(NamedTuple):
    """|errors| of a law on the half of its rows that were held out. `bar` is None where none is set."""

    law: str
    key: str
    rows: int
    mean: float
    median: float
    p90: float
    bar: tuple[float, float] | None

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None else self.median <= self.bar[0] and self.p90 <= self.bar[1]


def kernel_rows(devices: list[str] | None = None, engines: list[str] | None = None) -> list[Row]:
    """A row for each law, device, engine and number format that has measured rows.

    Raises: ArchcalcError without the tables; ConfigError for an unknown device or engine.
    """
    for name in devices or ():
        one_of("device", name, tables.SYSTEMS)
    for engine in engines or ():
        one_of("engine", engine, tables.ENGINES)
    found = []
    for name in devices or tables.SYSTEMS:
        for engine in engines or tables.ENGINES:
            for problem in problems(name, engine):
                number_format = problem.key.split("/")[2] if problem.law in ("gemm", "experts") else ""
                law, on = constants(problem.law, name, engine, number_format)
                if on != name:
                    raise ArchcalcError(f"{problem.key}: has rows but no constants; run python -m archcalc.laws.fit")
                off = sorted(map(abs, problem.errors(law, problem.halves()[1])))
                spread = fmean(off), median(off), off[int(0.9 * len(off))]
                found.append(Row(problem.law, problem.key, len(off), *spread, _bar(problem.law, name, number_format)))
    return found


def _bar(law: str, name: str, number_format: str) -> tuple[float, float] | None:
    if law in ("all_reduce", "experts"):
        return MEDIAN_BAR, float("inf")
    if number_format in FORMAT_BARS:
        return FORMAT_BARS[number_format] if name in BARS else None
    return BARS.get(name)


def rendered(rows: list[Row], style: str = "table") -> str:
    """A table for each law."""
    parts = []
    for law, title in TITLES.items():
        mine = [row for row in rows if row.law == law]
        if not mine:
            continue
        cells: list[list[Any]] = []
        for row in mine:
            bar = "" if row.bar is None else f"{row.bar[0]:.0%}" + ("" if row.bar[1] > 9 else f", {row.bar[1]:.0%}")
            verdict = {True: "reached", False: "MISSED", None: ""}[row.passed]
            shares = [f"{value:.1%}" for value in (row.mean, row.median, row.p90)]
            cells.append([row.key, row.rows, *shares, bar, verdict])
        headers = [title, "held-out rows", "mean |error|", "median", "90th percentile", "bar", "outcome"]
        parts.append(table(cells, headers, style))
    return "\n\n".join(parts)


def document(rows: list[Row], command: str) -> str:
    """The tables as a report in Markdown."""
    from importlib.metadata import version

    about = (
        "Errors |predicted / measured - 1| of the laws in `archcalc/laws` on that half of the measured rows which no "
        "fit saw. Constants are fitted by device, engine and number format, never by model or size. Attention is in "
        "bf16. A row without a bar is of a device or format that none is set for."
    )
    source = f"Command `{command}`; measured tables of aiconfigurator-core {version('aiconfigurator-core')}."
    return f"# Latency of GPU kernels, predicted and measured\n\n{about}\n\n{rendered(rows, 'markdown')}\n\n{source}\n"
