"""`archcalc derive`: the formulas of a model as text or LaTeX, each with what its symbols stand for."""

from __future__ import annotations

import sympy

from archcalc.config import ModelConfig
from archcalc.dims import AXES
from archcalc.symbolic import RUNTIME, derive


def _named(expression: sympy.Expr) -> tuple[sympy.Expr, list[tuple[sympy.Symbol, sympy.Expr]]]:
    """The expression with a name for each count of queries whose window is not yet full (see `dims.pairs`)."""
    counts = sorted(expression.atoms(sympy.Max), key=str)
    names = [sympy.Symbol("m" if len(counts) == 1 else f"m_{n}") for n, _ in enumerate(counts, start=1)]
    found = list(zip(names, counts, strict=True))
    return sympy.factor_terms(expression.subs([(count, name) for name, count in found])), found


def derivation(config: ModelConfig, dense: bool = False, latex: bool = False) -> str:
    """Every formula of the model, its value where no request is needed, and the legend."""
    formulas, legend = derive(config, dense)
    shown = sympy.latex if latex else str
    counted = "every pair" if dense else "visible pairs only"
    out = [f"{config.name}. FLOPs: matrix products, 2 a multiply-add; attention counts {counted}.", ""]
    used: set[sympy.Symbol] = set()
    for formula in formulas:
        used |= formula.expression.free_symbols
        expression, unfilled = _named(formula.expression)
        text = f"\\[ {shown(expression)} \\]" if latex else shown(expression)
        text += "".join(
            f"\n    with {m} = {shown(value)}, the queries whose window is not full" for m, value in unfilled
        )
        if formula.quantity == "parameters":
            text += f"  = {int(formula.at()):,}"
        out += [f"{formula.subject}: {formula.quantity}", f"    {text}", ""]
    out.append("Symbols")
    for letter, symbol in RUNTIME.items():
        if symbol in used:
            out.append(f"    {letter:4} {AXES[letter]}")
    for symbol, meaning in legend.items():
        if symbol in used:
            out.append(f"    {symbol.name:4} {meaning} = {formulas[0].values[symbol]:,}")
    return "\n".join(out)
