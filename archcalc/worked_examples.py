"""Two worked examples from teaching material, each figure beside what the calculator derives for it.

`python -m archcalc.worked_examples` writes reports/worked-examples.md. Only the figures of the documents are typed
in here; every derived value is computed when the report is made.
"""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from archcalc.config import ModelConfig
from archcalc.cost import bound, costs, parameters, passes
from archcalc.dims import pairs
from archcalc.presets import names, preset
from archcalc.render import table
from archcalc.report import parameter_rows, per_block

TARGET = Path("reports") / "worked-examples.md"
SCALES = {"": 1, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12, "%": Fraction(1, 100), "x": 1}
ABOUT = Fraction(1, 100)  # what a figure with a tilde may be off by


class Claim(NamedTuple):
    """One figure of a document.

    Args:
        said: the figure as written, its scale as the last letter: `~25M`, `6.5%`, `3.5x`, `218,112,000`.
        derived: the same quantity as the calculator has it, exactly.
        digit: the place that the figure is rounded to, where trailing zeros hide it (in the figure's own scale).
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
    """A model's parameters a layer, and FLOPs a layer of a prefill of T tokens with every pair counted."""

    def __init__(self, config: ModelConfig, T: int = 4096):
        self.config, self.T, self.total = config, T, parameters(config)
        self.rows = {row["name"].rsplit("*.", 1)[-1]: row for row in parameter_rows(config)}
        self.layers = len(config.decoder.layers)
        self.mlp = config.decoder.layers[0].mlp
        self.block = per_block(parameter_rows(config))["block"]
        run = passes(config, 1, T, T)[0]
        by_line = zip(run.bound.lines, costs(run, dense=True), strict=True)
        self.flops = {line.op.name: cost.flops for line, cost in by_line if line.group.block}
        causal = zip(run.bound.lines, costs(run), strict=True)
        self.causal_layer = sum(cost.flops for line, cost in causal if line.group.block)

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
    def layer(self) -> int:
        return sum(self.flops.values())

    @property
    def widening(self) -> Fraction:
        """intermediate_size / hidden_size"""
        width = getattr(self.mlp, "expert", self.mlp).intermediate_size
        return Fraction(width, self.config.hidden_size)


def llama_parameters() -> list[Claim]:
    m = Model(preset("llama3-8b"))
    full = Model(preset("llama3-8b", {"num_key_value_heads": 32}))
    plain = 2 * 4 * m.config.hidden_size**2  # two matrices, 4 times as wide
    attention = m.config.decoder.layers[0].self_attn
    saved = full.block["attention"] - m.block["attention"]
    share = m.params("self_attn.q_proj") / Fraction(m.params("self_attn.k_proj"))
    return [
        Claim("head dimension", "128", attention.head_dim, "hidden_size / heads"),
        Claim(
            "query heads a key/value head",
            "4",
            Fraction(attention.num_attention_heads, attention.num_key_value_heads),
            "N/K",
        ),
        *(
            Claim(f"{letter.upper()} projection", said, m.params(f"self_attn.{letter}_proj"), axes)
            for letter, said, axes in (
                ("q", "16,777,216", "D·N·H"),
                ("k", "4,194,304", "D·K·H"),
                ("v", "4,194,304", "D·K·H"),
                ("o", "16,777,216", "N·H·D"),
            )
        ),
        Claim("attention of a block", "41,943,040", m.block["attention"], "the four projections"),
        Claim("K and V smaller than Q and O", "4x", share, "by N/K"),
        Claim("saved a block by grouped queries", "~25M", saved, "2·D·(N - K)·H", digit=1),
        *(
            Claim(f"{name} matrix", "58,720,256", m.params(f"mlp.{name}_proj"), "D·F")
            for name in ("gate", "up", "down")
        ),
        Claim("feed-forward of a block", "176,160,768", m.block["feed_forward"], "three matrices"),
        Claim(
            "feed-forward over attention",
            "4.2x",
            Fraction(m.block["feed_forward"], m.block["attention"]),
            "exactly, with grouped queries; "
            f"{float(Fraction(full.block['feed_forward'], full.block['attention']))}x with a key head a query head",
        ),
        Claim("intermediate over hidden size", "3.5x", m.widening, "F/D"),
        Claim(
            "three matrices 3.5 wide over two 4 wide (called comparable)",
            "~1x",
            Fraction(m.block["feed_forward"], plain),
            "3 · 3.5 is more than 2 · 4: this feed-forward is larger; 8/3 would make them equal",
            digit=Fraction(1, 10),
        ),
        Claim("two norms", "8,192", m.block["norms"], "2·D"),
        Claim("a block", "218,112,000", m.block["total"], "attention, feed-forward and norms"),
        Claim("32 blocks", "6,979,584,000", m.layers * m.block["total"], "L times a block"),
        Claim("token embedding", "525,336,576", m.params("embed_tokens"), "V·D"),
        Claim("final norm", "4,096", m.params("norm"), "D"),
        Claim("head, untied", "525,336,576", m.params("lm_head"), "D·V"),
        Claim("the model", "8,030,261,248", m.total, "all of the above"),
        Claim("the model, as published", "8.03B", m.total, "to three digits"),
        Claim("head in the whole", "~6.5%", Fraction(m.params("lm_head"), m.total), "D·V of the total"),
        Claim(
            "saved by tying", "~525M", m.total - parameters(preset("llama3-8b", {"tie_word_embeddings": True})), "V·D"
        ),
        Claim("writes to the residual stream", "64", 2 * m.layers, "attention and feed-forward of each block"),
    ]


def depth_and_width() -> list[Claim]:
    deep, heads = Model(preset("llama3-8b")), preset("llama3-8b").decoder.layers[0].self_attn

    def shallow(width: int) -> Model:
        times = width // deep.config.hidden_size
        keys = {
            "hidden_size": width,
            "num_hidden_layers": 2,
            "intermediate_size": deep.mlp.intermediate_size * times,
            "num_attention_heads": heads.num_attention_heads * times,
            "num_key_value_heads": heads.num_key_value_heads * times,
        }
        return Model(preset("llama3-8b", keys))

    wide = shallow(32768)
    equal = deep.config.hidden_size * isqrt(deep.layers // 2)
    ratio = Fraction(2 * shallow(equal).block["total"], deep.layers * deep.block["total"])
    depths = (("llama2-7b", 32), ("llama3-8b", 32), ("llama3-70b", 80), ("llama3.1-405b", 126))
    return [
        Claim(
            "2 layers 32768 wide over 32 layers 4096 wide",
            "~1x",
            Fraction(wide.total, deep.total),
            f"a block grows with the square of the width: {wide.total / 1e9:.4g}B against {deep.total / 1e9:.4g}B "
            f"(blocks alone {wide.block['total'] * 2 / (deep.layers * deep.block['total']):.4g}x); "
            f"2 blocks of {equal} have {float(ratio):.5g}x the parameters of those {deep.layers}",
            digit=Fraction(1, 10),
        ),
        *(
            Claim(f"layers of {name}", str(layers), len(preset(name).decoder.layers), "num_hidden_layers")
            for name, layers in depths
        ),
    ]


def llama_flops() -> list[Claim]:
    m, full = Model(preset("llama3-8b")), Model(preset("llama3-8b", {"num_key_value_heads": 32}))
    long, thousand = (Model(preset("llama3-8b"), T) for T in (128 * 1024, 128_000))
    linear = m.projections + m.feed_forward
    head = 2 * m.T * m.params("lm_head")
    return [
        Claim("projections with full heads, a layer", "549G", full.projections, "4·2·T·D²; cut off, not rounded"),
        Claim(
            "what grouped queries take off the projections",
            "~20%",
            1 - Fraction(m.projections, full.projections),
            f"K and V are half of the four and shrink to a quarter: {m.projections / 1e9:.4g}G are left",
        ),
        Claim("attention scores, a layer", "275G", m.scores, "4·T²·D, every pair counted"),
        Claim("feed-forward, a layer", "1,448G", m.feed_forward, "6·T·D·F is this much less"),
        Claim(
            "a layer",
            "~2,100G",
            m.layer,
            "right to two digits, though it is not the sum of the three figures given, which is "
            f"{(full.projections + m.scores + m.feed_forward) / 1e9:,.0f}G without grouped queries",
            digit=100,
        ),
        Claim(
            "32 layers",
            "~67.2T",
            m.layers * m.layer,
            "32 times a figure of two digits cannot have three; "
            f"with the head {(m.layers * m.layer + head) / 1e12:.4g}T, "
            f"and {m.layers * m.causal_layer / 1e12:.4g}T in the layers if only visible pairs count",
        ),
        Claim(
            "linear terms, a layer",
            "1,997G",
            linear,
            "carries on the feed-forward's error and leaves grouped queries out",
        ),
        Claim(
            "scores in a layer",
            "~12%",
            Fraction(m.scores, m.layer),
            f"of the derived layer; {m.scores / 2 / (linear + m.scores / 2):.3g} of it if only visible pairs count",
        ),
        Claim(
            "scores of 128K tokens, a layer",
            "274T",
            long.scores,
            f"at 131,072 tokens; {thousand.scores / 1e12:.4g}T at 128,000: no reading of 128K gives the figure",
        ),
        Claim(
            "times that the linear terms grow from 4K to 128K",
            "32",
            Fraction(long.projections + long.feed_forward, linear),
            f"and the scores {long.scores // m.scores} times, to {long.scores / long.layer:.1%} of the layer: they do dominate",
        ),
    ]


def generation() -> list[Claim]:
    """Growth with the context, by the derived formula, and what an encoder-decoder computes once."""
    import sympy

    from archcalc.symbolic import S, T, derive

    formulas, _ = derive(preset("llama3-8b"))
    flops = next(
        f.expression.subs(f.values) for f in formulas if f.subject == "model" and f.quantity.startswith("FLOPs")
    )
    decode, prefill = sympy.Poly(flops.subs(T, 1), S), sympy.Poly(flops.subs(S, T), T)
    base = preset("transformer-base")
    again = sum("cross_attn.k_proj" in line.name or "encoder." in line.name for line in bound(base)[1].lines)
    return [
        Claim(
            "power of the context in a cached token's FLOPs", "1", decode.degree(), "degree in S of the formula, T = 1"
        ),
        Claim("power of the context without a cache", "2", prefill.degree(), "degree in T of the formula, S = T"),
        Claim("encoder ops and cross keys computed again for a token", "0", again, "ops of the decoder's pass"),
        Claim("encoder layers in 2017", "6", len(base.encoder.layers), "the base model"),
        Claim("decoder layers in 2017", "6", len(base.decoder.layers), "the base model"),
    ]


def feed_forward_ratios() -> list[Claim]:
    base, seven, eight = (preset(name) for name in ("transformer-base", "llama2-7b", "llama3-8b"))
    ratios: dict[Fraction, list[str]] = {}
    for name in names():
        config = preset(name)
        if "tiny" not in name:
            mlp = config.decoder.layers[0].mlp
            width = getattr(mlp, "expert", mlp).intermediate_size
            ratios.setdefault(Fraction(width, config.hidden_size), []).append(name)
    spread = "; ".join(f"{float(ratio):.4g}: {', '.join(found)}" for ratio, found in sorted(ratios.items()))
    gpt, llama, llama2 = Model(preset("gpt2")), Model(eight), Model(seven)
    gated, plain = 3 * Fraction(8, 3), 2 * 4
    return [
        Claim(
            "intermediate size at 512", "2048", base.decoder.layers[0].mlp.intermediate_size, "4·D of the base model"
        ),
        Claim("intermediate over hidden size, everywhere", "4x", llama.widening, f"not everywhere: {spread}"),
        Claim(
            "intermediate over hidden size in Llama",
            "~2.67x",
            llama2.widening,
            "8/3, rounded up to whole 256s (Llama 2 7B)",
        ),
        Claim("the same in Llama 3 8B", "~2.67x", llama.widening, "later models widened it"),
        Claim("gate and up at 8/3", "5.33x", 2 * Fraction(8, 3), "two matrices of 8/3·D columns"),
        Claim("gated at 8/3 over plain at 4", "1x", gated / plain, "three matrices against two"),
        Claim(
            "feed-forward in a block of GPT-2",
            "~67%",
            Fraction(gpt.block["feed_forward"], gpt.block["total"]),
            "two thirds: 8·D² beside 4·D²",
        ),
        Claim(
            "feed-forward in a block of Llama 3 8B",
            "~67%",
            Fraction(llama.block["feed_forward"], llama.block["total"]),
            "grouped queries and a third matrix: more than two thirds",
        ),
        Claim(
            "attention in a block of GPT-2",
            "~33%",
            Fraction(gpt.block["attention"], gpt.block["total"]),
            "one third, but for biases and norms",
        ),
    ]


def masks() -> list[Claim]:
    rows = [
        Claim(f"keys that position {row} sees", str(row + 1), pairs({"T": 1, "S": row + 1}, True, None), "0 to itself")
        for row in range(4)
    ]
    return [*rows, Claim("ones in the mask of 4 tokens", "10", pairs({"T": 4, "S": 4}, True, None), "T·(T + 1)/2")]


def worksheet() -> list[Claim]:
    m, gpt = Model(preset("worksheet-gpt"), 1024), Model(preset("gpt2"), 1024)
    untied = parameters(preset("gpt2", {"tie_word_embeddings": False}))
    small = "biases and norms are in; the document leaves them out"
    return [
        Claim("token embedding", "25.7M", m.params("embed_tokens"), "V·D"),
        Claim("position embedding", "0.5M", m.params("embed_positions"), "M·D"),
        Claim("attention of a block", "1.05M", m.block["attention"], "4·D², and biases"),
        Claim("feed-forward of a block", "2.10M", m.block["feed_forward"], "2·D·F, and biases"),
        Claim("a block", "3.15M", m.block["total"], small),
        Claim("12 blocks", "37.8M", m.layers * m.block["total"], small),
        Claim("tied head", "0", m.params("lm_head"), "the embedding's matrix"),
        Claim("the model", "~64M", m.total, "all of the above and the final norm", digit=1),
        Claim(
            "its size over that of GPT-2",
            "~1x",
            Fraction(m.total, gpt.total),
            "called about the size of GPT-2; it is half of it",
            digit=Fraction(1, 10),
        ),
        Claim("GPT-2: hidden size", "768", gpt.config.hidden_size, "n_embd"),
        Claim("GPT-2: intermediate size", "3072", gpt.mlp.intermediate_size, "4·D"),
        Claim("GPT-2: layers", "12", gpt.layers, "n_layer"),
        Claim("GPT-2: attention of a block", "2.36M", gpt.block["attention"], "4·D², and biases"),
        Claim("GPT-2: feed-forward of a block", "4.72M", gpt.block["feed_forward"], "2·D·F, and biases"),
        Claim("GPT-2: 12 blocks", "85M", gpt.layers * gpt.block["total"], small),
        Claim("GPT-2: token embedding", "38.6M", gpt.params("embed_tokens"), "V·D"),
        Claim("GPT-2: the model", "~124M", gpt.total, "also positions and the final norm", digit=1),
        Claim(
            "GPT-2: the model, made to match its paper",
            "117M",
            gpt.total,
            f"a tied head is already left out: untied it would be {untied / 1e6:.4g}M; the paper's table is off",
        ),
    ]


FIRST, SECOND = "The transformer block and the full stack", "DL S039"
SECTIONS = {
    f"{FIRST}: parameters of Llama 3 8B": llama_parameters,
    f"{FIRST}: depth and width": depth_and_width,
    f"{FIRST}: FLOPs of Llama 3 8B, T = 4096": llama_flops,
    f"{FIRST}: what is computed once": generation,
    f"{SECOND}: how wide a feed-forward is": feed_forward_ratios,
    f"{SECOND}: the causal mask": masks,
    f"{SECOND}: the parameter worksheet": worksheet,
}
HEAD = """\
# Worked examples, checked

Written by `python -m archcalc.worked_examples`. Each figure of two teaching documents, "{first}" and "{second}",
beside the value that the calculator derives for it. `holds`: equal. `rounded`: less than one of its last digit
away, or 1% where the document says "about". `wrong`: neither.

{count} figures: {verdicts}.

FLOPs are matrix products, 2 a multiply-add, one sequence, every (query, key) pair counted, as in the documents. Not
checked, because no architecture says it: what the documents state about loss, speed of norms, training stability, the
depth that a task needs, and the number of lines of code.
"""


def worked_examples() -> str:
    """The report as Markdown."""
    found = {title: claims() for title, claims in SECTIONS.items()}
    verdicts = [claim.verdict for claims in found.values() for claim in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("holds", "rounded", "wrong"))
    out = [HEAD.format(first=FIRST, second=SECOND, count=len(verdicts), verdicts=counts)]
    for title, claims in found.items():
        rows = [[claim.subject, claim.said, claim.shown, claim.verdict, claim.why] for claim in claims]
        out += [f"## {title}\n", table(rows, ["claim", "said", "derived", "verdict", "why"], "markdown"), ""]
    return "\n".join(out)


def main() -> int:
    """Write the report under the current folder: whole or not at all."""
    TARGET.parent.mkdir(exist_ok=True)
    new = TARGET.with_suffix(f".{os.getpid()}.tmp")
    new.write_text(worked_examples(), encoding="utf-8")
    os.replace(new, TARGET)
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
