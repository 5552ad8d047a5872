"""The op list over sympy symbols: the formula behind each number of a report.

The same `bind` and the same monomials as the integers, with symbols for axis sizes. Imports sympy.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archcalc.blocks import Group, groups
from archcalc.config import ModelConfig
from archcalc.cost import Bound, Pass, bind, cache_elements, total
from archcalc.dims import AXES, Algebra, Dims

SYMBOLS = Algebra(sympy.Min, sympy.Max, lambda even: even / 2)
RUNTIME = {letter: sympy.Symbol(letter, integer=True, positive=True) for letter in "BTSXR"}
B, T, S, X, R = RUNTIME.values()


@dataclass(frozen=True)
class Formula:
    """One quantity: of what, its convention, the expression, and the values of the model's own symbols."""

    subject: str
    quantity: str
    expression: sympy.Expr
    values: dict[sympy.Symbol, int]

    def at(self, **request: int) -> sympy.Expr:
        """The value of the model at these runtime axes, e.g. `at(B=1, T=1, S=4096)`."""
        return self.expression.subs(self.values).subs({RUNTIME[k]: v for k, v in request.items()})


class Symbols:
    """One symbol a letter, with a subscript where groups of the model differ in its size."""

    def __init__(self, found: tuple[Group, ...]):
        sizes: dict[str, dict] = {}
        for group in found:
            for letter, value in group.dims.items():
                sizes.setdefault(letter, {}).setdefault(value, None)
            if group.block:
                sizes.setdefault("L", {}).setdefault((group.path, group.count), None)
        self.values: dict[sympy.Symbol, int] = {}
        self.legend: dict[sympy.Symbol, str] = {}
        self._symbols = {}
        for letter, distinct in sizes.items():
            for number, value in enumerate(distinct, start=1):
                name = letter if len(distinct) == 1 else f"{letter}_{number}"
                symbol = sympy.Symbol(name, integer=True, positive=True)
                self._symbols[letter, value] = symbol
                if letter != "G":  # written as N/K
                    path, size_ = value if letter == "L" else ("", value)
                    stack = path.removesuffix("layers.*.").rstrip(".")  # empty where the model has one stack
                    self.values[symbol] = size_
                    self.legend[symbol] = AXES[letter] + (f" ({stack})" if stack else "")

    def dims(self, group: Group) -> Dims:
        symbols = {a: self._symbols[a, v] for a, v in group.dims.items()}
        return symbols | ({"G": symbols["N"] / symbols["K"]} if "G" in symbols else {})

    def count(self, group: Group):
        return self._symbols["L", (group.path, group.count)] if group.block else sympy.Integer(1)


def _tidy(expression) -> sympy.Expr:
    return sympy.factor_terms(sympy.expand(expression))


def _flops(bound: Bound, encode: bool, dense: bool) -> sympy.Expr:
    dims = {"B": B, "T": X, "S": X} if encode else {"B": B, "T": T, "S": S, "X": X, "R": R}
    return _tidy(total(Pass("formula", dims, bound), dense, SYMBOLS).flops)


def derive(config: ModelConfig, dense: bool = False) -> tuple[list[Formula], dict[sympy.Symbol, str]]:
    """Formulas of each kind of block and of the model, and the legend of their symbols.

    Returns:
        parameters; FLOPs of a pass over B sequences (decoder: T tokens at the end of S, X source tokens,
        R positions with logits; encoder: X tokens); elements of caches and recurrent states after S tokens.
    """
    every = groups(config)
    symbols = Symbols(every)
    found: list[Formula] = []

    def add(subject: str, chosen: list[Group], whole: bool) -> None:
        count = symbols.count if whole else lambda group: sympy.Integer(1)
        parts = {once: bind(tuple(g for g in chosen if g.once is once), symbols.dims, count) for once in (True, False)}
        owned = sum(line.count * line.params for part in parts.values() for line in part.lines)
        found.append(Formula(subject, "parameters", _tidy(owned), symbols.values))
        for once, quantity in ((True, "FLOPs a source (B, X)"), (False, "FLOPs a pass (B, T, S)")):
            if parts[once].lines:
                found.append(Formula(subject, quantity, _flops(parts[once], once, dense), symbols.values))
        held = _tidy(sum(cache_elements(parts[False], B, S, X, SYMBOLS)))
        if held != 0:
            found.append(Formula(subject, "cache and state elements (B, S)", held, symbols.values))

    for label in dict.fromkeys(g.block for g in every if g.block):
        add(label, [g for g in every if g.block == label], whole=False)
    add("model", list(every), whole=True)
    return found, symbols.legend
