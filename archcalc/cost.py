"""Sums over the op list: parameters, the passes of a request, KV-cache elements. Integers throughout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from archcalc.blocks import Group, groups
from archcalc.config import ModelConfig, expanded, once_a_config
from archcalc.dims import INTEGERS, Algebra, Dims, Mask, Size, kept
from archcalc.errors import ConfigError
from archcalc.ops import ONCE, Cost, Monomial, Op, Sizes, params, size

NO_TOKENS = str.maketrans("", "", "BSX")
NOTHING = Cost()
PARAMS = Cost._fields.index("params")


class Line(NamedTuple):
    """One op of one kind of block, bound to its model; `count` layers run it.

    `dims` are the axes that the model fixes. Its cost is `fixed`, what no request
    changes, by column of `Cost`, and `terms`: (column, factor, index of the monomial).
    """

    name: str
    op: Op
    group: Group
    dims: Dims
    count: Size
    fixed: list[Size]
    terms: list[tuple[int, Size, int]]

    @property
    def params(self) -> Size:
        """Parameters of one layer."""
        return self.fixed[PARAMS]

    @property
    def label(self) -> str:
        """Its name, with the kind of block where there are several."""
        kind = self.group.block
        return f"{self.name} ({kind})" if kind[-1:].isdigit() else self.name


class Totals(NamedTuple):
    """The `fixed` and `terms` of a `Line`, summed."""

    fixed: list[Size]
    terms: list[tuple[int, Size, int]]


@dataclass(frozen=True)
class Bound:
    """An op list with the model's sizes put in: what is left depends on the request alone."""

    lines: list[Line]
    monomials: list[Monomial]

    @cached_property
    def totals(self) -> Totals:
        """All lines and layers together."""
        fixed: list[Size] = list(NOTHING)
        terms: dict[tuple[int, int], Size] = {}
        for line in self.lines:
            for column, value in enumerate(line.fixed):
                fixed[column] = fixed[column] + line.count * value
            for column, factor, at in line.terms:
                terms[column, at] = terms.get((column, at), 0) + line.count * factor
        return Totals(fixed, [(column, factor, at) for (column, at), factor in terms.items()])

    @cached_property
    def held(self) -> dict[tuple[str, Mask | None], Size]:
        """Elements that stay behind a pass for a sequence, all layers together, by what they are and which are kept.

        Of one token, for `S` (its own keys and values) and `X` (those of the source); of a `state` in all. An encoder
        keeps nothing: no later pass reads it.
        """
        found: dict[tuple[str, Mask | None], Size] = {}
        for line in self.lines:
            mask = line.op.mask and line.op.mask.bound(line.dims)
            written = (line.op.output,) if line.op.output.role == "state" else ()
            for role, axes in line.op.inputs + written:
                if role == "state" or (role == "cache" and not (mask and not mask.causal)):
                    kind = "state" if role == "state" else "S" if "S" in axes else "X"
                    elements = line.count * size(axes.translate(NO_TOKENS), line.dims)
                    key = (kind, mask if kind == "S" else None)
                    found[key] = found.get(key, 0) + elements
        return found


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
    lines = []
    for group in found:
        dims, count = dims_of(group), count_of(group)
        sizes = Sizes(dims)
        for op in group.ops:
            terms, fixed = [], list(NOTHING)
            for column, scale, axes, monomial in op.bind(sizes):
                if monomial is ONCE:
                    fixed[column] = fixed[column] + scale * sizes[axes]
                else:
                    terms.append((column, scale * sizes[axes], index.setdefault(monomial, len(index))))
            lines.append(Line(group.path + op.name, op, group, dims, count, fixed, terms))
    return Bound(lines, list(index))


@once_a_config
def bound(config: ModelConfig) -> tuple[Bound, Bound]:
    """(what runs once a source, what runs in every decoder pass)."""
    every = groups(config)
    return bind(tuple(g for g in every if g.once)), bind(tuple(g for g in every if not g.once))


def passes(
    config: ModelConfig,
    batch: Size,
    prompt: Size,
    context: Size,
    last_logits: bool = False,
    latent: str | None = None,
) -> list[Pass]:
    """The passes that serve a request.

    Args:
        batch: sequences at once, B.
        prompt: tokens of the input. Decoder-only: one `prefill` with T = S = prompt.
            Encoder-decoder: the source, X; one `encode`, which also makes the cross keys and values. A source of
            sound has one length, whatever the prompt is.
            Encoder-only: one `encode`, and no decode.
        context: tokens that the `decode` step attends over, its own among them (S, with T = 1).
        last_logits: the prefill makes logits of its last position only, as a server does; otherwise of all.
        latent: the form of latent attention, `absorbed` or `expanded`, in both passes; None: expanded in the prefill
            and absorbed in the decode, as engines do.
    """
    once, step = bound(config)
    positions = 1 if last_logits else prompt
    whole = {"B": batch, "T": prompt, "S": prompt, "R": positions}
    if not config.decoder:
        return [Pass("encode", whole, step)]
    source = config.source_tokens(prompt)
    one = bound(expanded(config))[1] if latent == "expanded" else step
    decode = Pass("decode", {"B": batch, "T": 1, "S": context, "X": source, "R": 1}, one)
    if config.encoder:
        return [Pass("encode", {"B": batch, "T": source, "S": source}, once), decode]
    return [Pass("prefill", whole, step if latent == "absorbed" else bound(expanded(config))[1]), decode]


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
    return _evaluate(run.bound.lines, run, dense, algebra)


def total(run: Pass, dense: bool = False, algebra: Algebra = INTEGERS) -> Cost:
    """Sum over lines and layers."""
    return _evaluate([run.bound.totals], run, dense, algebra)[0]


def _evaluate(summands: list, run: Pass, dense: bool, algebra: Algebra) -> list[Cost]:
    values = [monomial.value(run.dims, dense, algebra) for monomial in run.bound.monomials]
    found = []
    for summand in summands:
        columns = summand.fixed.copy()
        for column, factor, at in summand.terms:
            columns[column] = columns[column] + factor * values[at]
        found.append(Cost._make(columns))
    return found


def parameters(config: ModelConfig) -> int:
    """Elements of all weights, a tied matrix once. Sinusoids and rotary tables are computed, not stored."""
    return sum([line.count * line.params for part in bound(config) for line in part.lines])


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token uses: its top-k experts of all, everything else whole."""
    found = 0
    for part in bound(config):
        for line in part.lines:
            whole = line.op.gather != "E"
            found += line.count * (line.params if whole else params(line.op, line.dims | {"E": line.dims["A"]}))
    return found


class Held(NamedTuple):
    """Elements that a decoder keeps between two passes."""

    cache: Size = 0  # keys and values of its own tokens, or what stands for them
    cross: Size = 0  # keys and values of the source
    state: Size = 0  # recurrent and convolution states, of one size at any context


def cache_elements(
    step: Bound, batch: Size, context: Size, source: Size = 0, algebra: Algebra = INTEGERS, static: bool = False
) -> Held:
    """What a decoder keeps; a windowed layer keeps its window.

    Args:
        step: the ops of a decoder pass, `bound(config)[1]`.
        context: decoder tokens a sequence. source: encoder tokens a sequence.
        static: a cache with `context` slots in every layer, windowed or not.
    """
    found: dict[str, Size] = {"S": 0, "X": 0, "state": 0}
    for (kind, mask), elements in step.held.items():
        mask = mask.dense if static and mask else mask
        tokens = 1 if kind == "state" else source if kind == "X" else kept(context, mask, algebra)
        found[kind] = found[kind] + elements * batch * tokens
    return Held(*found.values())


def buffers(config: ModelConfig) -> int:
    """Elements that are stored with the weights and are no parameters, such as a router's correction bias."""
    return sum(
        line.count * size(axes, line.dims)
        for part in bound(config)
        for line in part.lines
        for role, axes in line.op.inputs
        if role == "buffer"
    )
