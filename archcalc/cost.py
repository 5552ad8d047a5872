"""Sums over the op list: parameters, the passes of a request, KV-cache elements. Integers throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from archcalc.blocks import Group, groups
from archcalc.config import ModelConfig
from archcalc.dims import INTEGERS, Algebra, Dims, Size
from archcalc.errors import ConfigError
from archcalc.ops import Cost, Monomial, Op, params, size

PARAMS = Cost._fields.index("params")


class Line(NamedTuple):
    """One op of one kind of block, bound to its model; `count` layers run it.

    `dims` are the axes that the model fixes; `params` is of one layer; `terms` are (column of `Cost`,
    factor, index of the monomial).
    """

    name: str
    op: Op
    group: Group
    dims: Dims
    count: Size
    params: Size
    terms: list[tuple[int, Size, int]]


class Bound(NamedTuple):
    """An op list with the model's sizes put in: what is left depends on the request alone.

    `totals` are the terms of all lines and layers together.
    """

    lines: list[Line]
    monomials: list[Monomial]
    totals: list[tuple[int, Size, int]]


class Pass(NamedTuple):
    """One run over some of the ops, `encode`, `prefill` or `decode`, with the runtime axes it has."""

    name: str
    dims: Dims
    bound: Bound


def bind(
    found: tuple[Group, ...],
    dims_of: Callable[[Group], Dims] = lambda g: g.dims,
    count_of: Callable[[Group], Size] = lambda g: g.count,
) -> Bound:
    """Put the model's sizes (or, for a formula, their symbols) into the ops of these groups."""
    index: dict[Monomial, int] = {}
    lines, totals = [], {}
    for group in found:
        dims, count = dims_of(group), count_of(group)
        for op in group.ops:
            line_terms, owned = [], 0
            for column, factor, monomial in op.bind(dims):
                at = index.setdefault(monomial, len(index))
                line_terms.append((column, factor, at))
                totals[column, at] = totals.get((column, at), 0) + count * factor
                owned += factor if column == PARAMS else 0
            lines.append(Line(group.path + op.name, op, group, dims, count, owned, line_terms))
    return Bound(lines, list(index), [(column, factor, at) for (column, at), factor in totals.items()])


def bound(config: ModelConfig) -> tuple[Bound, Bound]:
    """(what runs once a source, what runs in every decoder pass), bound once a config and kept with it."""
    if "_bound" not in config.__dict__:
        every = groups(config)
        config.__dict__["_bound"] = tuple(bind(tuple(g for g in every if g.once is once)) for once in (True, False))
    return config.__dict__["_bound"]


def passes(config: ModelConfig, batch: Size, prompt: Size, context: Size, last_logits: bool = False) -> list[Pass]:
    """The passes that serve a request.

    Args:
        batch: sequences at once, B.
        prompt: tokens of the input. Decoder-only: one `prefill` with T = S = prompt.
            Encoder-decoder: the source, X; one `encode`, which also makes the cross keys and values.
        context: tokens that the `decode` step attends over, its own among them (S, with T = 1).
        last_logits: the prefill makes logits of its last position only, as a server does; otherwise of all.
    """
    once, step = bound(config)
    decode = Pass("decode", {"B": batch, "T": 1, "S": context, "X": prompt, "R": 1}, step)
    if config.encoder:
        return [Pass("encode", {"B": batch, "T": prompt, "S": prompt}, once), decode]
    positions = 1 if last_logits else prompt
    return [Pass("prefill", {"B": batch, "T": prompt, "S": prompt, "R": positions}, step), decode]


def check_request(config: ModelConfig, batch: int, prompt: int, context: int) -> None:
    """Raise ConfigError for sizes that are no request, or that learned positions have no row for."""
    for name, value in (("batch", batch), ("prompt", prompt), ("context", context)):
        if type(value) is not int or not 1 <= value <= 2**40:
            raise ConfigError(f"{name}={value!r}: must be a whole number from 1 to 2^40; give a positive integer")
        longest = config.max_position_embeddings
        if name != "batch" and config.position_embedding == "learned" and value > longest:
            raise ConfigError(
                f"{name}={value}: the model has learned positions for max_position_embeddings={longest} tokens; "
                f"give at most {longest}, or --set a larger max_position_embeddings"
            )


def costs(run: Pass, dense: bool = False, algebra: Algebra = INTEGERS) -> list[Cost]:
    """The cost of a single layer of each line, in the order of `run.bound.lines`.

    Args:
        dense: count every (query, key) pair, also those that the mask hides.
    """
    values = [m.value(run.dims, dense, algebra) for m in run.bound.monomials]
    return [_evaluate(line.terms, values) for line in run.bound.lines]


def total(run: Pass, dense: bool = False, algebra: Algebra = INTEGERS) -> Cost:
    """Sum over lines and layers."""
    return _evaluate(run.bound.totals, [m.value(run.dims, dense, algebra) for m in run.bound.monomials])


def _evaluate(found: list[tuple[int, Size, int]], values: list[Size]) -> Cost:
    columns = [0] * len(Cost._fields)
    for column, factor, at in found:
        columns[column] = columns[column] + factor * values[at]
    return Cost(*columns)


def parameters(config: ModelConfig) -> int:
    """Elements of all weights, a tied matrix once. Sinusoids and rotary tables are computed, not stored."""
    return sum([line.count * line.params for part in bound(config) for line in part.lines])


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token uses: its top-k experts of all, everything else whole."""
    found = 0
    for part in bound(config):
        for line in part.lines:
            dims = {**line.dims, "E": line.dims["A"]} if line.op.gather == "E" else line.dims
            found += line.count * params(line.op, dims)
    return found


def cache_elements(step: Bound, batch: Size, context: Size, source: Size = 0, algebra: Algebra = INTEGERS):
    """Elements of the (self, cross) keys and values that a decoder holds; a windowed layer keeps its window.

    Args:
        step: the ops of a decoder pass, `bound(config)[1]`.
        context: decoder tokens a sequence. source: encoder tokens a sequence.
    """
    held = {"S": 0, "X": 0}
    for line in step.lines:
        for role, axes in line.op.inputs:
            if role == "cache":
                along, kept = ("S", context) if "S" in axes else ("X", source)
                if line.op.mask and line.op.mask.window:
                    kept = algebra.minimum(kept, line.dims["W"])
                per_token = line.count * size(axes.replace(along, "").replace("B", ""), line.dims)
                held[along] = held[along] + per_token * batch * kept
    return held["S"], held["X"]
