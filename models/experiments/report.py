"""What an experiment found, written as Markdown with a picture beside it, and how it was made below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from archcalc.files import replaced_file
from archcalc.render import table
from models.provenance import made

PACKAGES = ("archcalc", "torch", "numpy", "sympy", "matplotlib", "onnxruntime", "num2words", "sacrebleu", "tokenizers")
# The same numbers give the same file: ids of clip paths come from this salt, and text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "archcalc", "svg.fonttype": "none", "font.size": 9, "axes.grid": True})
matplotlib.rcParams.update({"grid.alpha": 0.3, "legend.frameon": False})
LARGEST_PICTURE = 100_000  # bytes


@dataclass(frozen=True)
class Claim:
    """A statement that the numbers could have refuted, and what they are. `timed`: they depend on the machine."""

    says: str
    found: str
    holds: bool
    timed: bool = False


@dataclass(frozen=True)
class Found:
    """An experiment's outcome.

    Args:
        body: paragraphs and tables in Markdown.
        draw: draws the picture on an empty figure of `size` inches.
        caption: what the picture shows. seeds: which random numbers were used.
    """

    title: str
    body: Sequence[str]
    claims: Sequence[Claim]
    draw: Callable[[Figure], None]
    caption: str
    seeds: str
    size: tuple[float, float] = (7.0, 3.6)


def markdown_table(rows: list[list[Any]], headers: list[str]) -> str:
    """A table in Markdown; whole numbers get commas."""
    return table(rows, headers, "markdown")


def picture(found: Found) -> Figure:
    """The drawn figure, without any window."""
    figure = Figure(figsize=found.size, layout="constrained")
    found.draw(figure)
    return figure


def rendered(found: Found, picture_name: str, made: str) -> str:
    """The report as Markdown."""
    claims = [[c.says, c.found, "holds" if c.holds else "FAILS"] for c in found.claims]
    parts = [
        f"# {found.title}",
        f"![{found.caption}]({picture_name})",
        f"{found.caption}.",
        markdown_table(claims, ["claim", "found", "verdict"]),
        *found.body,
        made,
    ]
    return "\n\n".join(parts) + "\n"


def write(found: Found, name: str, out: Path, command: str, seconds: float) -> Path:
    """Write `experiment-NAME.md` and `.svg` into the folder `out`; each is replaced whole or not at all."""
    path = out / f"experiment-{name}.md"
    drawn = path.with_suffix(".svg")
    with replaced_file(drawn) as new:
        picture(found).savefig(new, format="svg", metadata={"Date": None, "Creator": None})
        if new.stat().st_size > LARGEST_PICTURE:
            raise AssertionError(f"{drawn}: {new.stat().st_size:,} bytes; draw fewer points")
    with replaced_file(path) as new:
        how = made(command, PACKAGES, f"{seconds:.0f} s", f"seeds: {found.seeds}")
        new.write_text(rendered(found, drawn.name, how), encoding="utf-8")
    return path
