"""A figure that somebody wrote, beside what the calculator derives for it; and a model as such texts see it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from archcalc.config import ModelConfig
from archcalc.cost import costs, parameters, passes
from archcalc.report import parameter_rows, per_block

SCALES = {"": 1, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12, "%": Fraction(1, 100), "x": 1}
ABOUT = Fraction(1, 100)  # what a figure with a tilde may be off by


class Claim(NamedTuple):
    """One figure of a document.

    Args:
        said: the figure as written, its scale as the last letter: `~25M`, `6.5%`, `3.5x`, `218,112,000`.
        derived: the same quantity as the calculator has it, exactly.
        digit: the place that the figure is rounded to, in its own scale, where its last digit does not show it.
    """

    subject: str
    said: str
    derived: int | Fraction
    why: str
    digit: Fraction | int | None = None

    @property
    def scale(self) -> int | Fraction:
        return SCALES[self.said[-1] if self.said[-1] in SCALES else ""]

    @property
    def figure(self) -> str:
        return self.said.strip("~MBGT%x").replace(",", "")

    @property
    def verdict(self) -> str:
        """`holds` if equal, `rounded` if less than its last digit (with a tilde: or 1%) away, else `wrong`."""
        value = Fraction(self.figure) * self.scale
        digit = self.digit or Fraction(1, 10 ** len(self.figure.partition(".")[2]))
        off = abs(value - self.derived)
        if off == 0:
            return "holds"
        close = off < digit * self.scale or (self.said.startswith("~") and off <= ABOUT * abs(self.derived))
        return "rounded" if close else "wrong"

    @property
    def shown(self) -> str:
        """The derived value: whole, and in the scale of the figure."""
        unit = self.said[-1] if self.said[-1] in SCALES else ""
        scaled = f"{float(self.derived / self.scale):,.7g}{unit}"
        if Fraction(self.derived).denominator == 1 and unit in "MBGT":
            return f"{int(self.derived):,}" + (f" = {scaled}" if unit else "")
        return scaled


class Model:
    """A decoder with one kind of block: parameters, and FLOPs, of a layer.

    FLOPs are those of a prefill of T tokens with every pair counted; `causal_*` count the visible ones.
    """

    def __init__(self, config: ModelConfig, T: int = 4096):
        self.config, self.T, self.total = config, T, parameters(config)
        self.rows = {row["name"].rsplit("*.", 1)[-1]: row for row in parameter_rows(config)}
        self.layers = len(config.decoder.layers)
        self.mlp = config.decoder.layers[0].mlp
        self.block = per_block(parameter_rows(config))["block"]
        run = passes(config, 1, T, T)[0]
        by_line = zip(run.bound.lines, costs(run, dense=True), strict=True)
        self.flops = {line.op.name: cost.flops for line, cost in by_line if line.group.block}
        causal = [(line, cost) for line, cost in zip(run.bound.lines, costs(run), strict=True) if line.group.block]
        self.causal_layer = sum(cost.flops for _, cost in causal)
        self.causal_scores = sum(cost.flops for line, cost in causal if line.op.mask)

    def params(self, name: str) -> int:
        return self.rows[name]["per_layer"] if name in self.rows else 0

    @property
    def projections(self) -> int:
        return sum(self.flops[f"self_attn.{x}_proj"] for x in "qkvo")

    @property
    def scores(self) -> int:
        return self.flops["self_attn.scores"] + self.flops["self_attn.context"]

    @property
    def feed_forward(self) -> int:
        return sum(flops for name, flops in self.flops.items() if name.startswith("mlp."))

    @property
    def linear(self) -> int:
        return self.projections + self.feed_forward

    @property
    def layer(self) -> int:
        return sum(self.flops.values())

    @property
    def widening(self) -> Fraction:
        """intermediate_size / hidden_size"""
        width = getattr(self.mlp, "expert", self.mlp).intermediate_size
        return Fraction(width, self.config.hidden_size)
