"""Where attention's T² overtakes the rest: the prompt at which scores and context take more FLOPs than the matrices.

Of all layers of a prefill, without embedding and head. Twice: solved by sympy as a formula, and searched for in the op
list's integers; the two must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import sympy

from archcalc.blocks import Group, groups
from archcalc.config import ModelConfig, expanded
from archcalc.cost import Bound, Line, Pass, active_parameters, bind, costs
from archcalc.presets import names, preset
from archcalc.symbolic import SYMBOLS, Symbols, T
from models.experiments.report import Claim, Found, markdown_table
from models.progress import progress

LONGEST = 2**40  # tokens
TEXT_PRESET, WINDOWED = "llama3-8b", "gemma3-1b"


@dataclass(frozen=True)
class Layers:
    """The layers of a decoder-only model, in the form in which a prefill computes them."""

    config: ModelConfig

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The ops of the layers, without embedding, last norm and head."""
        return tuple(group for group in groups(expanded(self.config)) if group.block)

    @cached_property
    def _bound(self) -> Bound:
        return bind(self.groups)

    @property
    def lines(self) -> list[Line]:
        return self._bound.lines

    def flops(self, tokens: int, dense: bool) -> tuple[int, int]:
        """(attention, everything else) of a prefill of so many tokens, one sequence."""
        found = costs(Pass("prefill", {"B": 1, "T": tokens, "S": tokens, "R": tokens}, self._bound), dense)
        both = [0, 0]
        for line, cost in zip(self.lines, found, strict=True):
            both[line.op.mask is None] += line.count * cost.flops
        return both[0], both[1]

    def overtaken(self, tokens: int, dense: bool) -> bool:
        """Whether attention takes more FLOPs than everything else."""
        attention, rest = self.flops(tokens, dense)
        return attention > rest

    @cached_property
    def kind(self) -> str:
        """What its attention sees, in words."""
        masks = [line.op.mask for line in self.lines if line.op.mask]
        if not masks:
            return "no attention"
        limited = {mask.kind: None for mask in masks if mask.limit or mask.stride}
        seen = (["full"] if any(not (m.limit or m.stride) for m in masks) else []) + [k for k in limited if k != "made"]
        mixers = [block.self_attn for block in self.config.decoder.layers if block.self_attn]
        return " + ".join(seen + ["recurrent"] * any(mixer.module == "mixer" for mixer in mixers))


def search(layers: Layers, dense: bool) -> int | None:
    """The least T at which attention overtakes, from the op list's integers; None for never.

    Attention a token grows with T while the rest is constant, so one bisection finds it. In a chunk it starts anew:
    there the chunks are tried one after another, and within one it grows. Where entries stand for several tokens it
    grows in steps, so the step before is looked through.
    """
    masks = [line.op.mask.bound(line.dims) for line in layers.lines if line.op.mask]
    if not masks or not layers.overtaken(LONGEST, dense):
        return None
    chunk = min((m.limit for m in masks if m.kind == "chunk" and not dense), default=None)
    low, high = 0, chunk or 1
    while not layers.overtaken(high, dense):
        low, high = high, high + chunk if chunk else 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if layers.overtaken(middle, dense) else (middle, high)
    steps = 4 * max((m.stride or 0 for m in masks), default=0)
    return next(t for t in range(max(1, high - steps), high + 1) if layers.overtaken(t, dense))


TOKENS = sympy.Symbol("T", positive=True)  # sympy keeps no fractions as solutions for a symbol that is an integer


@dataclass(frozen=True)
class Solved:
    """Attention less everything else, a token, as a formula of T, and the values of its symbols."""

    difference: sympy.Expr
    values: dict[sympy.Symbol, int]

    @property
    def solvable(self) -> bool:
        """Not without attention, and not where entries or chunks are counted whole: rounding has no inverse."""
        return self.difference.has(TOKENS) and not self.difference.has(sympy.floor)

    def formula(self) -> sympy.Expr:
        """T in the model's symbols, past every window."""
        past = {m: _limit(m) for m in self.difference.atoms(sympy.Min)}
        return sympy.factor(sympy.solve(sympy.expand(self.difference.subs(past) * TOKENS), TOKENS)[-1])

    def root(self) -> sympy.Expr | None:
        """The exact T at which both are equal; None for never. Windows fill up one after another."""
        difference = self.difference.subs(self.values)
        minima = difference.atoms(sympy.Min)
        limits = sorted({_limit(m) for m in minima})
        for low, high in zip([0, *limits], [*limits, sympy.oo], strict=True):
            between = {m: TOKENS if _limit(m) >= high else _limit(m) for m in minima}
            for root in sympy.solve(sympy.expand(difference.subs(between) * TOKENS), TOKENS):
                if low < root <= high:
                    return root
        return None


def _limit(minimum: sympy.Expr) -> sympy.Expr:
    """W of Min(T, W)."""
    return next(argument for argument in minimum.args if argument != TOKENS)


def solved(config: ModelConfig, dense: bool) -> Solved:
    """The same op list over symbols, S = T."""
    every = Layers(config).groups
    symbols = Symbols(every)
    bound = bind(every, symbols.dims, symbols.count)
    found = costs(Pass("formula", {"B": 1, "T": T, "S": T, "R": T}, bound), dense, SYMBOLS)
    signed = [
        line.count * cost.flops * (1 if line.op.mask else -1) for line, cost in zip(bound.lines, found, strict=True)
    ]
    return Solved(sympy.expand(sum(signed) / T).subs(T, TOKENS), symbols.values)


@dataclass(frozen=True)
class Row:
    """One preset: the least T that overtakes, by search and (where there is a formula) by it; None for never."""

    name: str
    kind: str
    active: int
    dense: int | None
    causal: int | None
    formula: str | None
    agrees: bool


def integer(root: sympy.Expr | None) -> int | None:
    """The least whole T beyond a root."""
    return None if root is None else int(sympy.floor(root)) + 1


def row(name: str) -> Row:
    """Search and solve for one preset."""
    config = preset(name)
    layers = Layers(config)
    found = {dense: search(layers, dense) for dense in (True, False)}
    agrees, formula = True, None
    for dense in (True, False):
        forms = solved(config, dense)
        if forms.solvable:
            agrees &= integer(forms.root()) == found[dense]
            formula = str(forms.formula()) if dense else formula
    return Row(name, layers.kind, active_parameters(config), found[True], found[False], formula, agrees)


def decoders() -> list[str]:
    """Presets that are a decoder alone."""
    return [name for name in names() if (c := preset(name)).decoder and not c.encoder]


def run(chosen: list[str]) -> list[Row]:
    """A row for each of these presets."""
    return [row(name) for name in progress(chosen, "crossover")]


def claims(rows: list[Row]) -> list[Claim]:
    """Formula against search, and what the first text says of its model (with a key head for each query head)."""
    with_formula = [r for r in rows if r.formula]
    wrong = [r.name for r in rows if not r.agrees]
    windowed = [r for r in rows if r.kind == "window"]
    told = [(r.causal is not None) == _window_is_enough(preset(r.name)) for r in windowed]
    layers = Layers(preset(TEXT_PRESET, {"num_key_value_heads": 32}))
    share = {tokens: _share(layers, tokens, dense=True) for tokens in (4096, 131072)}
    return [
        Claim(
            "sympy's T is the integers' T",
            f"{len(with_formula) - len(wrong)} of {len(with_formula)} presets with a formula"
            + (f"; not {', '.join(wrong)}" if wrong else ""),
            not wrong and bool(with_formula),
        ),
        Claim("text: at 4,096 tokens about 12% of a layer", f"{share[4096]:.1%}", round(share[4096], 2) == 0.12),
        Claim("text: at 128K it dominates", f"{share[131072]:.1%}", share[131072] > 0.5),
        Claim(
            "a window W in every layer: overtaken if and only if 4·N·H·W exceeds a token's FLOPs in the matrices",
            f"{sum(told)} of {len(told)} presets",
            all(told),
        ),
    ]


def _window_is_enough(config: ModelConfig) -> bool:
    """Whether a full window costs a token more than the matrices do. All layers are alike."""
    attention = config.decoder.layers[0].self_attn
    window = 4 * attention.num_attention_heads * attention.head_dim * attention.sliding_window
    return len(config.decoder.layers) * window > Layers(config).flops(1, dense=False)[1]


def _share(layers: Layers, tokens: int, dense: bool) -> float:
    attention, rest = layers.flops(tokens, dense)
    return attention / (attention + rest)


def _text_table() -> str:
    layers = Layers(preset(TEXT_PRESET))
    rows = [
        [tokens, *(f"{_share(layers, tokens, dense):.1%}" for dense in (True, False))]
        for tokens in (4096, 8192, 32768, 131072)
    ]
    return markdown_table(rows, [f"T, {TEXT_PRESET}", "attention's share, every pair", "visible pairs"])


def _formulas(rows: list[Row]) -> str:
    of: dict[str, list[str]] = {}
    for one in rows:
        if one.formula:
            of.setdefault(one.formula, []).append(one.name)
    short = {formula: names for formula, names in of.items() if len(formula) <= LONGEST_FORMULA}
    ranked = sorted(short.items(), key=lambda item: -len(item[1]))
    shown = markdown_table(
        [[f"`{f}`", len(n), n[0]] for f, n in ranked], ["T, every pair counted", "presets", "such as"]
    )
    long = sum(len(names) for formula, names in of.items() if formula not in short)
    more = "of latent attention, of recurrent layers, or of several kinds of layers"
    return f"{shown}\n\n{long} more presets have the same quotient with terms {more}." if long else shown


NEVER, LONGEST_FORMULA = "never", 120


def report(rows: list[Row]) -> Found:
    """Every preset, the formulas, and the text's example."""
    listed = [[r.name, r.kind, r.dense or NEVER, r.causal or NEVER] for r in rows if r.kind != "no attention"]
    windowed = solved(preset(WINDOWED), dense=False).formula()
    without = ", ".join(r.name for r in rows if r.kind == "no attention")
    body = [
        "T is the least prompt at which scores and context of all layers take more FLOPs than everything else in the "
        "layers (embedding and head apart), in one prefill. `every pair` counts what a mask hides, too, so a window "
        "changes nothing; `visible pairs` counts what the mask lets through. Latent attention in its expanded form, "
        "as a prefill computes it; an indexer's scores are attention, a recurrent layer's products are not.",
        _text_table(),
        "The first text's 12% at 4,096 tokens (with a key head for each query head) and its forecast for 128K hold "
        "when every pair is counted. With visible pairs alone it takes twice the context to get as far.",
        "## Formulas",
        "Attention that sees everything: with every pair T = (FLOPs a token of the matrices) / (FLOPs a pair), and "
        "with visible pairs a query sees (T + 1)/2 keys on average, so T becomes 2T - 1. By kind of model, "
        "solved by sympy from the op list (letters: `archcalc derive`):",
        _formulas(rows),
        f"With windows of W in L_1 of the layers, past the window, visible pairs ({WINDOWED}): `{windowed}`.",
        "A window in every layer: attention a token tends to a constant, which overtakes late or never.",
        "## Presets",
        markdown_table(listed, ["preset", "attention", "T, every pair", "T, visible pairs"]),
        f"Without attention, so not applicable: {without}." if without else "",
        "Chunks and compressed entries are counted whole, which has no inverse: those are searched for only.",
    ]
    return Found(
        "Crossover: where attention's T² overtakes the matrices",
        body,
        claims(rows),
        lambda figure: draw(rows, figure),
        "The least T at which attention takes more FLOPs than the matrices, a dot a preset; at the top edge: never",
        "none",
        (7.0, 4.0),
    )


def draw(rows: list[Row], figure) -> None:
    top = 2 * max(r.causal or 0 for r in rows)
    axes = figure.subplots()
    for kind in dict.fromkeys(r.kind for r in rows if r.kind != "no attention"):
        chosen = [r for r in rows if r.kind == kind]
        axes.scatter([r.active for r in chosen], [r.causal or top for r in chosen], s=14, label=kind)
    for tokens, label in ((4096, "4K"), (131072, "128K")):
        axes.axhline(tokens, color="gray", lw=0.8, ls="--")
        axes.annotate(label, (0.005, tokens), xycoords=("axes fraction", "data"), va="bottom")
    axes.set(xscale="log", yscale="log", xlabel="active parameters", ylabel="T, visible pairs")
    axes.legend(fontsize=7, ncols=2)


def experiment() -> Found:
    return report(run(decoders()))
