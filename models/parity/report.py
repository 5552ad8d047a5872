"""The table of `python -m models parity`, and what must hold in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from tabulate import tabulate

from archcalc.errors import one_of
from archcalc.files import replaced_file
from models.parity.checkpoints import CHECKPOINTS, tiny
from models.parity.compare import Pair, in_half, worst
from models.progress import progress
from models.provenance import made

FP32 = 1e-5  # of the largest logit; what is left are sums in another order
# Half precision rounds every activation by up to half a unit u. Both implementations round at the same places, so
# neither should be more than twice as far from fp32; a handful of roundings a layer, added up, stays within 16 u.
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TIMES, MOST_UNITS = 2.0, 16
WAYS = ("full", "decode, static", "decode, growing", "chunks, static", "chunks, growing")
PACKAGES = ("torch", "transformers")
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass
class Row:
    """One family: the worst error of each way in fp32; (theirs, ours) in each half precision."""

    name: str
    fp32: dict[str, float]
    half: dict[torch.dtype, tuple[float, float]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """What is outside of its bound, in words."""
        found = [
            f"{self.name}: {way} differs by {e:.1e}, more than {FP32:g}"
            for way, e in self.fp32.items()
            if not e <= FP32
        ]
        for dtype, (theirs, ours) in self.half.items():
            bound = min(TIMES * theirs + UNITS[dtype], MOST_UNITS * UNITS[dtype])
            if not ours <= bound:
                found.append(f"{self.name}: {NAMES[dtype]} differs by {ours:.1e}, more than {bound:.1e}")
        return found


def row(name: str, dtypes: tuple[torch.dtype, ...] = tuple(UNITS)) -> Row:
    """Compare one family in fp32 by every way, and in each of these types by the worst of them."""
    pair = Pair(*tiny(name))
    expected = pair.expected()
    found = Row(name, {way: worst(logits, expected) for way, logits in pair.ways()})
    found.half = {dtype: in_half(name, dtype) for dtype in dtypes}
    return found


def rows(names: list[str]) -> list[Row]:
    """The rows of these families."""
    return [row(name) for name in progress(names, "parity")]


def table(found: list[Row]) -> str:
    """Markdown: a line a family."""
    head = ["family", "class", *WAYS, *(f"{NAMES[d]} {who}" for d in UNITS for who in ("theirs", "ours")), ""]
    lines = []
    for one in found:
        fp32 = [f"{one.fp32[way]:.1e}" if way in one.fp32 else "" for way in WAYS]
        half = [f"{value:.1e}" for dtype in UNITS for value in one.half[dtype]]
        verdict = "outside" if one.problems else "within"
        lines.append([one.name, CHECKPOINTS[one.name][0], *fp32, *half, verdict])
    return tabulate(lines, head, "github", disable_numparse=True)


TEXT = f"""\
Tiny models of each family (2 to 4 layers, hidden size 32), random weights, copied tensor by tensor from the
transformers class into the reference model by the loader's name maps. Three sequences of unequal length, padded in
front, as one batch; transformers sees each of them alone, without padding.

- `full`: one pass. `decode`: a prefill of six columns, then a token at a time. `chunks`: a prefill in two parts. With a
  cache of static slots and with one that grows. Numbers are the largest difference of a logit, relative to the largest
  logit, in fp32; the bound is {FP32:g}: sums in another order.
- bf16 and fp16: of each implementation, the median over tokens of its error against transformers in fp32 with the same
  (rounded) weights; of ours, that of the worst of the five ways. Both round at the same places, so ours may be at most
  {TIMES:g} times theirs plus a unit, and at most {MOST_UNITS} units (2^-8, 2^-11). The median, because a token that
  changes its expert by a rounding, in either implementation, has other logits altogether.
"""


def write(names: list[str], out: Path | None, command: str) -> tuple[str, bool]:
    """(the table, with what is outside of its bound below it, whether nothing is); also into the file `out`.

    Args:
        names: families; none for all of them.
    Raises: ConfigError for a name that there is not.
    """
    for name in names:
        one_of("family", name, CHECKPOINTS)
    found = rows(names or list(CHECKPOINTS))
    problems = [problem for one in found for problem in one.problems]
    lines = [f"{len(found) - len({p.split(':')[0] for p in problems})} of {len(found)} within their bounds", *problems]
    if out:
        parts = ["# Parity with transformers", TEXT, table(found), "\n".join(lines), made(command, PACKAGES)]
        with replaced_file(out) as new:
            new.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return "\n".join([table(found), "", *lines]), not problems
