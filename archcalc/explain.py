"""The op lines that a number of a report is the sum of, each with its formula in axis letters and in values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from archcalc.config import ModelConfig
from archcalc.cost import Line, Pass, costs
from archcalc.counts import lines
from archcalc.dims import AXES, Dims, Mask, kept, pairs
from archcalc.errors import one_of
from archcalc.memory import Holding, holdings
from archcalc.ops import RUNTIME, Op, size

PASSES = ("encode", "prefill", "decode")
QUANTITIES = ("parameters", "active", *PASSES, "kv_cache", "state", "weight_bytes")


class Term(NamedTuple):
    """One summand: `layers` times `one`, which is `formula` with `values` in it."""

    name: str
    formula: str
    values: str
    one: int
    layers: int

    @property
    def total(self) -> int:
        return self.one * self.layers


def _product(axes: str, dims: Dims) -> tuple[str, str]:
    """(`D·N·H`, `4096·32·128`)."""
    return "·".join(axes), "·".join(f"{dims[axis]:,}" for axis in axes)


def _sum(products: list[tuple[str, str]]) -> tuple[str, str]:
    return tuple(" + ".join(side) for side in zip(*products, strict=True))


def _weights(line: Line, dims: Dims) -> Term:
    owned = [tensor.axes for tensor in line.op.weights]
    formula, values = _sum([_product(axes, dims) for axes in owned])
    return Term(line.label, formula, values, sum(size(axes, dims) for axes in owned), line.count)


def parameter_terms(config: ModelConfig) -> list[Term]:
    """Stored weights."""
    return [_weights(line, line.dims) for line in lines(config) if line.params]


def active_terms(config: ModelConfig) -> list[Term]:
    """Weights that one token uses: A, as many experts as it goes to, in place of all E."""
    found = []
    for line in lines(config):
        if line.params and line.op.gather == "E":
            term = _weights(line, line.dims | {"E": line.dims["A"]})
            found.append(term._replace(formula=term.formula.replace("E", "A")))
        elif line.params:
            found.append(_weights(line, line.dims))
    return found


def _flops(op: Op, dims: Dims, run: Pass, dense: bool, factor: int) -> tuple[str, str]:
    every = dims | run.dims
    axes = op.multiplied.replace("T", "").replace("S", "") if op.mask else op.multiplied
    axes = "".join(a for a in RUNTIME if a in axes) + "".join(a for a in axes if a not in RUNTIME)
    formula, values = _product(axes, every)
    lead = ("2·", "2·") if factor == 2 else ("", "")
    if not op.mask:
        return lead[0] + formula, lead[1] + values
    mask = op.mask.bound(dims).dense if dense else op.mask.bound(dims)
    letters = [letter for letter in (op.mask.limit, op.mask.stride) if letter]
    name = "T·S" if mask == Mask(False, None) else f"pairs({', '.join(['T', 'S', *letters])})"
    return f"{lead[0]}{formula}·{name}", f"{lead[1]}{values}·{pairs(every, mask):,}"


def flops_terms(run: Pass, dense: bool = False, macs: bool = False) -> list[Term]:
    """FLOPs (or multiply-adds) of one pass. `pairs` are the (query, key) pairs that the mask lets through."""
    found, factor = [], 1 if macs else 2
    for line, cost in zip(run.bound.lines, costs(run, dense), strict=True):
        if cost.flops:
            formula, values = _flops(line.op, line.dims, run, dense, factor)
            found.append(Term(line.label, formula, values, cost.flops * factor // 2, line.count))
    return found


def held_terms(config: ModelConfig, batch: int, context: int, source: int, state: bool) -> list[Term]:
    """Elements of the caches, or of the recurrent states, of the whole request."""
    return [_held(one, batch, context, source) for one in holdings(config) if state == (not one.tokens)]


def _held(one: Holding, batch: int, context: int, source: int) -> Term:
    formula, values = _product(one.axes, one.dims)
    if not one.tokens:
        return Term(one.name, f"B·{formula}", f"{batch:,}·{values}", batch * one.elements, one.layers)
    tokens, letter = (source, "X") if one.tokens == "X" else (kept(context, one.mask), "S")
    if letter == "S" and tokens < context:
        letter = {"window": "min(S, W)", "chunk": "min(S, c)"}.get(one.mask.kind if one.mask.limit else "", "S/c")
    return Term(
        one.name, f"B·{letter}·{formula}", f"{batch:,}·{tokens:,}·{values}", batch * tokens * one.elements, one.layers
    )


class Asked(NamedTuple):
    """What of a request the terms depend on. `bits`: of a weight and of a key or value. `source`: encoder tokens."""

    batch: int
    context: int
    source: int
    dense: bool
    macs: bool
    weight_bits: int
    kv_bits: int


def explain(config: ModelConfig, quantity: str, runs: list[Pass], asked: Asked) -> dict[str, Any]:
    """The terms of one number of a report.

    Args:
        quantity: one of `QUANTITIES`; a pass stands for its FLOPs. runs: the passes of the request.
    Returns:
        plain data: `terms`, their `sum`, the `bits` of one element where the number is in bytes, and the `total`.
    Raises:
        ConfigError: an unknown quantity, or a pass that the model does not have.
    """
    batch, context, source, dense, macs, weight_bits, kv_bits = asked
    by_name: dict[str, tuple[str, int | None, Callable[[], list[Term]]]] = {
        "parameters": ("parameters", None, lambda: parameter_terms(config)),
        "active": ("parameters", None, lambda: active_terms(config)),
        "kv_cache": ("bytes", kv_bits, lambda: held_terms(config, batch, context, source, state=False)),
        "state": ("bytes", kv_bits, lambda: held_terms(config, batch, context, source, state=True)),
        "weight_bytes": ("bytes", weight_bits, lambda: parameter_terms(config)),
    }
    for run in runs:
        by_name[run.name] = "MACs" if macs else "FLOPs", None, lambda run=run: flops_terms(run, dense, macs)
    one_of("explain", quantity, by_name)
    unit, bits, found = by_name[quantity]
    terms = found()
    whole = sum(term.total for term in terms)
    return {
        "quantity": quantity,
        "unit": unit,
        "terms": [term._asdict() | {"total": term.total} for term in terms],
        "sum": whole,
        "bits": bits,
        "total": -(-whole * bits // 8) if bits else whole,
        "legend": _legend(terms),
    }


def _legend(terms: list[Term]) -> dict[str, str]:
    """What the letters of the formulas stand for."""
    used = {letter for term in terms for letter in term.formula.replace("pairs", "").replace("min", "")}
    return {letter: meaning for letter, meaning in AXES.items() if letter in used}
