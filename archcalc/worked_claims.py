"""The figures of two teaching documents, each with the expression that derives it. Only the figures are typed in."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from archcalc.claims import Claim, Model
from archcalc.cost import bound, parameters
from archcalc.dims import CAUSAL, pairs
from archcalc.presets import preset

# Models whose widths are compared.
SHAPES = (
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "worksheet-gpt", "llama2-7b", "llama3-8b",
    "llama3-70b", "llama3.1-405b", "smollm2-135m", "mixtral-8x7b", "transformer-base", "transformer-big",
)  # fmt: skip
TENTH, HUNDREDTH = Fraction(1, 10), Fraction(1, 100)


def llama_attention() -> list[Claim]:
    m, full = Model(preset("llama3-8b")), Model(preset("llama3-8b", {"num_key_value_heads": 32}))
    attention = m.config.decoder.layers[0].self_attn
    q, k, v, o = (m.params(f"self_attn.{letter}_proj") for letter in "qkvo")
    group = Fraction(attention.num_attention_heads, attention.num_key_value_heads)
    saved = full.block["attention"] - m.block["attention"]
    return [
        Claim("head dimension", "128", attention.head_dim, "hidden_size / heads"),
        Claim("query heads a key/value head", "4", group, "N/K"),
        Claim("Q projection", "16,777,216", q, "D·N·H"),
        Claim("K projection", "4,194,304", k, "D·K·H"),
        Claim("V projection", "4,194,304", v, "D·K·H"),
        Claim("O projection", "16,777,216", o, "N·H·D"),
        Claim("attention of a block", "41,943,040", m.block["attention"], "the four projections"),
        Claim("K and V smaller than Q and O", "4x", Fraction(q, k), "by N/K"),
        Claim("saved a block by grouped queries", "~25M", saved, "2·D·(N - K)·H"),
    ]


def llama_feed_forward() -> list[Claim]:
    m, full = Model(preset("llama3-8b")), Model(preset("llama3-8b", {"num_key_value_heads": 32}))
    plain = 2 * 4 * m.config.hidden_size**2  # two matrices, 4 times as wide
    over, over_full = (Fraction(x.block["feed_forward"], x.block["attention"]) for x in (m, full))
    larger = Fraction(m.block["feed_forward"], plain)
    grouped = f"exactly, with grouped queries; {float(over_full)}x with a key head a query head"
    wide = "3 · 3.5 is more than 2 · 4, so this feed-forward is the larger one; 8/3 would make them equal"
    return [
        Claim("gate matrix", "58,720,256", m.params("mlp.gate_proj"), "D·F"),
        Claim("up matrix", "58,720,256", m.params("mlp.up_proj"), "D·F"),
        Claim("down matrix", "58,720,256", m.params("mlp.down_proj"), "F·D"),
        Claim("feed-forward of a block", "176,160,768", m.block["feed_forward"], "three matrices"),
        Claim("feed-forward over attention", "4.2x", over, grouped),
        Claim("intermediate over hidden size", "3.5x", m.widening, "F/D"),
        Claim("three matrices 3.5 wide over two 4 wide", "~1x", larger, wide, digit=TENTH),
    ]


def llama_model() -> list[Claim]:
    m = Model(preset("llama3-8b"))
    tied = parameters(preset("llama3-8b", {"tie_word_embeddings": True}))
    return [
        Claim("two norms", "8,192", m.block["norms"], "2·D"),
        Claim("a block", "218,112,000", m.block["total"], "attention, feed-forward and norms"),
        Claim("32 blocks", "6,979,584,000", m.layers * m.block["total"], "L times a block"),
        Claim("token embedding", "525,336,576", m.params("embed_tokens"), "V·D"),
        Claim("final norm", "4,096", m.params("norm"), "D"),
        Claim("head, untied", "525,336,576", m.params("lm_head"), "D·V"),
        Claim("the model", "8,030,261,248", m.total, "all of the above"),
        Claim("the model, as published", "8.03B", m.total, "to three digits"),
        Claim("head in the whole", "~6.5%", Fraction(m.params("lm_head"), m.total), "D·V of the total"),
        Claim("saved by tying", "~525M", m.total - tied, "V·D"),
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
    note = (
        f"a block grows with the square of the width: {wide.total / 1e9:.4g}B against {deep.total / 1e9:.4g}B (blocks "
        f"alone {wide.block['total'] * 2 / (deep.layers * deep.block['total']):.4g}x); 2 blocks of {equal} have "
        f"{float(ratio):.5g}x the parameters of those {deep.layers}"
    )
    over = Fraction(wide.total, deep.total)
    return [Claim("2 layers 32768 wide over 32 layers 4096 wide", "~1x", over, note, digit=TENTH), *depths()]


def depths() -> list[Claim]:
    """Layers, and the size that they are said to go with."""
    thirteen = {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40}
    thirteen["intermediate_size"] = 13824
    rows = [
        ("7B", "32", preset("llama2-7b")),
        ("8B", "32", preset("llama3-8b")),
        ("13B", "40", preset("llama2-7b", thirteen)),
        ("70B", "80", preset("llama3-70b")),
        ("405B", "126", preset("llama3.1-405b")),
    ]
    found = []
    for size, layers, config in rows:
        deep = len(config.decoder.layers)
        found.append(Claim(f"layers of a {size} model", layers, deep, "num_hidden_layers"))
        found.append(
            Claim(f"the {size} model", size, parameters(config), f"{deep} layers, {config.hidden_size:,} wide")
        )
    return found


def llama_flops() -> list[Claim]:
    m, full = Model(preset("llama3-8b")), Model(preset("llama3-8b", {"num_key_value_heads": 32}))
    head = 2 * m.T * m.params("lm_head")
    less = f"K and V are half of the four and shrink to a quarter: {m.projections / 1e9:.4g}G are left"
    layer = (
        f"right to two digits; the three figures given add up to {(full.layer) / 1e9:,.0f}G, with full key heads, "
        "when each is right"
    )
    stack = (
        f"multiplies a figure that was rounded to two digits; with the head {(m.layers * m.layer + head) / 1e12:.4g}T, "
        f"and {m.layers * m.causal_layer / 1e12:.4g}T in the layers if only visible pairs count"
    )
    visible = (
        f"of the derived layer; {float(Fraction(full.scores, full.layer)):.1%} with full key heads, "
        f"{m.causal_scores / m.causal_layer:.1%} if only visible pairs count"
    )
    return [
        Claim("projections with full key heads, a layer", "549G", full.projections, "4·2·T·D²; cut off, not rounded"),
        Claim("what grouped queries take off them", "~20%", 1 - Fraction(m.projections, full.projections), less),
        Claim("attention scores, a layer", "275G", m.scores, "4·T²·D, every pair counted"),
        Claim("feed-forward, a layer", "1,448G", m.feed_forward, "6·T·D·F comes to less"),
        Claim("a layer", "~2,100G", m.layer, layer, digit=100),
        Claim("32 layers", "~67.2T", m.layers * m.layer, stack),
        Claim("linear terms, a layer", "1,997G", m.linear, "carries that on, and has full key heads"),
        Claim("scores in a layer", "~12%", Fraction(m.scores, m.layer), visible),
        *long_context(),
    ]


def long_context() -> list[Claim]:
    binary, decimal = (Model(preset("llama3-8b"), T) for T in (128 * 1024, 128_000))
    note = (
        f"at 131,072 tokens, {binary.scores / binary.layer:.1%} of the layer, so it does dominate; "
        f"{decimal.scores / 1e12:.4g}T at 128,000: no reading of 128K gives the figure"
    )
    return [Claim("scores of 128K tokens, a layer", "274T", binary.scores, note)]


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
    ]


def feed_forward_ratios() -> list[Claim]:
    base, seven, eight = (preset(name) for name in ("transformer-base", "llama2-7b", "llama3-8b"))
    ratios: dict[Fraction, list[str]] = {}
    for name in SHAPES:
        config = preset(name)
        mlp = config.decoder.layers[0].mlp
        width = getattr(mlp, "expert", mlp).intermediate_size
        ratios.setdefault(Fraction(width, config.hidden_size), []).append(name)
    spread = "; ".join(f"{float(ratio):.4g}: {', '.join(found)}" for ratio, found in sorted(ratios.items()))
    llama, llama2 = Model(eight), Model(seven)
    width, rounded = base.decoder.layers[0].mlp.intermediate_size, "8/3, rounded up to whole 256s (Llama 2 7B)"
    gated = 3 * Fraction(8, 3) / (2 * 4)
    return [
        Claim("encoder layers in 2017", "6", len(base.encoder.layers), "the base model"),
        Claim("decoder layers in 2017", "6", len(base.decoder.layers), "the base model"),
        Claim("intermediate size at 512", "2048", width, "4·D of the base model"),
        Claim(
            "intermediate over hidden size, everywhere", "4x", llama.widening, f"in Llama 3 8B; {spread}", digit=TENTH
        ),
        Claim("intermediate over hidden size in Llama", "~2.67x", llama2.widening, rounded),
        Claim("the same in Llama 3 8B", "~2.67x", llama.widening, "later models widened it"),
        Claim("gate and up at 8/3", "5.33x", 2 * Fraction(8, 3), "two matrices of 8/3·D columns"),
        Claim("gated at 8/3 over plain at 4", "1x", gated, "three matrices against two"),
        *shares(),
    ]


def shares() -> list[Claim]:
    gpt, llama = (Model(preset(name)).block for name in ("gpt2", "llama3-8b"))
    ffn, ffn_llama = (Fraction(block["feed_forward"], block["total"]) for block in (gpt, llama))
    attention = Fraction(gpt["attention"], gpt["total"])
    return [
        Claim("feed-forward in a block of GPT-2", "~2/3", ffn, "8·D² beside 4·D²", digit=HUNDREDTH),
        Claim("attention in a block of GPT-2", "~1/3", attention, "the rest, but for norms", digit=HUNDREDTH),
        Claim(
            "feed-forward in a block of Llama 3 8B",
            "~2/3",
            ffn_llama,
            "more: grouped queries thin the attention, and 3.5 is wider than 8/3",
            digit=HUNDREDTH,
        ),
    ]


def masks() -> list[Claim]:
    rows = [
        Claim(f"keys that position {row} sees", str(row + 1), pairs({"T": 1, "S": row + 1}, CAUSAL), "0 to itself")
        for row in range(4)
    ]
    return [*rows, Claim("ones in the mask of 4 tokens", "10", pairs({"T": 4, "S": 4}, CAUSAL), "T·(T + 1)/2")]


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
            digit=TENTH,
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
            f"the tied head is already counted once: untied it would be {untied / 1e6:.4g}M; 117M was never its size",
        ),
    ]


FIRST, SECOND = "The transformer block and the full stack", "DL S039"
SECTIONS = {
    f"{FIRST}: parameters of Llama 3 8B": (llama_attention, llama_feed_forward, llama_model),
    f"{FIRST}: depth and width": (depth_and_width,),
    f"{FIRST}: FLOPs of Llama 3 8B, T = 4096": (llama_flops,),
    f"{FIRST}: what is computed once": (generation,),
    f"{SECOND}: how deep a stack and how wide a feed-forward is": (feed_forward_ratios,),
    f"{SECOND}: the causal mask": (masks,),
    f"{SECOND}: the parameter worksheet": (worksheet,),
}
