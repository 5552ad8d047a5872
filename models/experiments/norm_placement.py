"""Where the norm stands: the gradient that reaches the input of a stack, over its depth.

Three placements of the same block (causal self-attention and a ReLU feed-forward): pre-LN, post-LN, and DeepNorm,
which is post-LN with a scaled residual and smaller first weights.
Source: Xiong et al. 2020, arXiv:2002.04745 (theory); Wang et al. 2022, arXiv:2203.00555 (DeepNorm).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from archcalc.config import ModelConfig
from archcalc.hf import config_from_keys
from models import DecoderOnly, build
from models.experiments.report import Claim, Found, markdown_table

PLACEMENTS = {"pre-LN": ("pre", False), "post-LN": ("post", False), "DeepNorm": ("post", True)}
INPUT, FIRST, LAST = "the input", "the first feed-forward", "the last feed-forward"


@dataclass(frozen=True)
class Setting:
    """Depths in layers; sequences, tokens and width of the input."""

    depths: tuple[int, ...] = (2, 4, 6, 12, 24, 48)
    seeds: int = 48
    batch: int = 2
    tokens: int = 16
    hidden_size: int = 64


@dataclass(frozen=True)
class Result:
    """Gradient norms by (placement, where) as arrays [depth, seed]; the same of the plain sum, where [depth]."""

    setting: Setting
    norms: dict[tuple[str, str], np.ndarray]
    of_sum: dict[str, np.ndarray]
    identity: dict[str, float]

    def mean(self, placement: str, where: str = INPUT) -> np.ndarray:
        """Geometric mean over the seeds, [depth]."""
        return np.exp(np.log(self.norms[placement, where]).mean(-1))


def config(setting: Setting, placement: str, depth: int) -> ModelConfig:
    """The stack without positions, and with as many words as the input has tokens."""
    norm_placement, deepnorm = PLACEMENTS[placement]
    sizes = {"vocab_size": setting.batch * setting.tokens, "max_position_embeddings": setting.tokens}
    sizes |= {"hidden_size": setting.hidden_size, "intermediate_size": 4 * setting.hidden_size}
    block = {"norm": "layernorm", "norm_placement": norm_placement, "deepnorm": deepnorm, "position": "none"}
    block |= {"num_attention_heads": 4, "num_hidden_layers": depth, "hidden_act": "relu", "gated": False}
    return config_from_keys({"model_type": "transformer"} | sizes | block)


def initialised(model: DecoderOnly, placement: str, seed: int) -> DecoderOnly:
    """Xavier's normal weights, and an input of N(0, 1).

    DeepNorm: values, output and feed-forward have beta = (8·layers)^(-1/4) of them. Source: arXiv:2203.00555.
    """
    generator = torch.Generator().manual_seed(seed)
    beta = (8 * len(model.layers)) ** -0.25 if PLACEMENTS[placement][1] else 1.0
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(parameter, generator=generator)
        elif parameter.dim() == 2:
            scaled = any(part in name for part in ("v_proj", "o_proj", "mlp."))
            nn.init.xavier_normal_(parameter, beta if scaled else 1.0, generator=generator)
    return model


def words(setting: Setting) -> torch.Tensor:
    """Token ids [B, T], every word once."""
    return torch.arange(setting.batch * setting.tokens).view(setting.batch, setting.tokens)


def gradient_norms(model: DecoderOnly, setting: Setting, seed: int | None) -> list[float]:
    """Of a linear functional of the output: at the input, and at the last matrix of the first and last feed-forward.

    Every word occurs once, so the gradient of the embedding table is the gradient at the input.

    Args:
        seed: of the functional's random weights, over the output after the final norm where there is one.
            None: the plain sum of the last block's output.
    """
    ends = model.layers[0], model.layers[-1]
    wanted = [model.embed_tokens.weight, *(block.mlp.down_proj.weight for block in ends)]
    for parameter in wanted:
        parameter.requires_grad_(True)
    y_BTD = model.trunk(words(setting))
    weights_BTD = torch.ones_like(y_BTD)
    if seed is not None:
        y_BTD = y_BTD if model.norm is None else model.norm(y_BTD)
        weights_BTD = torch.randn(y_BTD.shape, generator=torch.Generator().manual_seed(seed + 1_000_000))
    return [gradient.norm().item() for gradient in torch.autograd.grad((weights_BTD * y_BTD).sum(), wanted)]


@torch.no_grad()
def distance_from_identity(setting: Setting, placement: str) -> float:
    """max |y - x| of a stack of two blocks whose attention and feed-forward are all zeros, before the final norm."""
    model = initialised(build(config(setting, placement, 2)), placement, 0)
    for name, parameter in model.named_parameters():
        if ("self_attn." in name or "mlp." in name) and "norm" not in name:
            parameter.zero_()
    ids_BT = words(setting)
    return (model.trunk(ids_BT) - model.embed_tokens(ids_BT)).abs().max().item()


def run(setting: Setting) -> Result:
    """All placements, depths and seeds."""
    norms: dict[tuple[str, str], np.ndarray] = {}
    of_sum = {}
    for placement in PLACEMENTS:
        found, sums = [], []
        for depth in setting.depths:
            model = build(config(setting, placement, depth))
            seeds = range(setting.seeds)
            found.append([gradient_norms(initialised(model, placement, s), setting, s) for s in seeds])
            sums.append(gradient_norms(model, setting, None)[0])
        every = np.array(found)  # [depth, seed, where]
        norms |= {(placement, where): every[..., i] for i, where in enumerate((INPUT, FIRST, LAST))}
        of_sum[placement] = np.array(sums)
    return Result(setting, norms, of_sum, {p: distance_from_identity(setting, p) for p in PLACEMENTS})


def claims(result: Result) -> list[Claim]:
    """What must hold between the shallowest and the deepest stack."""
    kept = {key: result.mean(*key)[-1] / result.mean(*key)[0] for key in result.norms}
    pre, post, deepnorm = (kept[placement, INPUT] for placement in PLACEMENTS)
    spread = {p: (n := result.norms[p, INPUT][-1]).max() / n.min() for p in PLACEMENTS}
    pre_last, post_last = kept["pre-LN", LAST], kept["post-LN", LAST]
    shallow, deep = result.setting.depths[0], result.setting.depths[-1]
    ends, root = f"{shallow} to {deep} layers", (shallow / deep) ** 0.5
    first_to_last = result.mean("post-LN", FIRST)[-1] / result.mean("post-LN", LAST)[-1]
    rounding = (result.of_sum["post-LN"] / result.mean("post-LN")).max()
    zeroed = result.identity
    return [
        Claim(f"post-LN loses more of the input's gradient than pre-LN, {ends}", f"{post:.2f}, {pre:.2f}", post < pre),
        Claim(
            f"and seeds differ more: most over least at {deep} layers",
            f"{spread['post-LN']:.3g}, {spread['pre-LN']:.3g}",
            spread["post-LN"] > spread["pre-LN"],
        ),
        Claim(f"DeepNorm keeps the input's gradient within 10%, {ends}", f"{deepnorm:.2f}", abs(deepnorm - 1) < 0.1),
        Claim(
            f"at the last layer pre-LN's gradient falls about as 1/√layers, to {root:.2f}",
            f"{pre_last:.2f}",
            root / 1.5 < pre_last < root * 1.5,
        ),
        Claim("at the last layer post-LN's gradient stays within 15%", f"{post_last:.2f}", abs(post_last - 1) < 0.15),
        Claim(
            f"of {deep} post-LN layers the first has the smaller gradient", f"{first_to_last:.2f}", first_to_last < 1
        ),
        Claim("a pre-LN block with zeroed sublayers is the identity", f"{zeroed['pre-LN']:g}", zeroed["pre-LN"] == 0),
        Claim("a post-LN block with zeroed sublayers is not", f"{zeroed['post-LN']:.3g}", zeroed["post-LN"] > 0.01),
        Claim("the sum of post-LN's output has no gradient but rounding", f"{rounding:.1e} of it", rounding < 1e-5),
    ]


def _rows(result: Result, where: str) -> list[list]:
    columns = [(result.mean(p, where), result.norms[p, where]) for p in PLACEMENTS]
    return [
        [depth, *(f"{mean[i]:.4g} ({every[i].min():.3g} to {every[i].max():.3g})" for mean, every in columns)]
        for i, depth in enumerate(result.setting.depths)
    ]


def report(result: Result) -> Found:
    """The tables, and what they say of the two texts."""
    s, headers = result.setting, ["layers", *PLACEMENTS]
    sums = [[d, *(f"{result.of_sum[p][i]:.3g}" for p in PLACEMENTS)] for i, d in enumerate(s.depths)]
    body = [
        f"Input: {s.batch} sequences of {s.tokens} tokens of width {s.hidden_size}, N(0, 1). Blocks: those of "
        "`models.block`, causal self-attention with 4 heads and a ReLU feed-forward of 4 times the width, no biases, "
        "LayerNorm, Xavier-normal weights. DeepNorm: residual times α = (2·layers)^(1/4); values, output and "
        "feed-forward times β = (8·layers)^(-1/4). What is differentiated is a random linear functional of the output "
        "(of pre-LN: after its final norm, as every pre-LN model has one).",
        f"## Norm of the gradient at {INPUT}: geometric mean (least to most) of {s.seeds} seeds",
        markdown_table(_rows(result, INPUT), headers),
        f"## The same at the matrix that ends {FIRST}",
        markdown_table(_rows(result, FIRST), headers),
        f"## The same at the matrix that ends {LAST}",
        markdown_table(_rows(result, LAST), headers),
        "The text says that at 24 post-LN layers gradients are wildly larger at the input than at the output. It is "
        "the other way round: they are as large as ever at the last layer, which is what Xiong et al. 2020 derive and "
        "what they explain the need of a warm-up by. Towards the input they shrink, by how much is a matter of luck.",
        "## Of the plain sum of the last block's output, one seed",
        markdown_table(sums, headers),
        "The text's script differentiates the sum. A LayerNorm's output sums to a constant, so its post-LN column has "
        "no gradient at any depth: what is printed is rounding. Its pre-LN column, of a stream that nothing "
        "normalises, grows. It takes a functional that tells features apart to see what placement does.",
    ]
    return Found(
        "Norm placement: the gradient at the input over depth",
        body,
        claims(result),
        lambda figure: draw(result, figure),
        "Norm of the gradient over depth, geometric mean of the seeds; bands: least to most",
        f"0 to {s.seeds - 1} of the weights, each with a functional of its own",
    )


def draw(result: Result, figure) -> None:
    for axes, where in zip(figure.subplots(1, 2, sharey=False), (INPUT, LAST), strict=True):
        for placement in PLACEMENTS:
            every = result.norms[placement, where]
            axes.plot(result.setting.depths, result.mean(placement, where), marker="o", ms=3, label=placement)
            axes.fill_between(result.setting.depths, every.min(-1), every.max(-1), alpha=0.15)
        axes.set(xscale="log", yscale="log", xlabel="layers", title=f"gradient at {where}")
        axes.set_xticks(result.setting.depths, result.setting.depths, minor=False)
        axes.minorticks_off()
    axes.legend()


def experiment() -> Found:
    return report(run(Setting()))
