"""English to German numbers: an encoder-decoder, and a decoder-only model that reads `source <sep> target`.

Both have the same block (pre-RMSNorm, rotary positions, SwiGLU), width and number of layers, and parameters equal
within 1%: what cross-attention takes, the decoder-only model has in its feed-forward. Both see the same pairs in the
same order, and are trained on the tokens of the target alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from archcalc.config import Attention, Block, FeedForward, ModelConfig, Norm, Rotary, Stack
from archcalc.cost import parameters
from models import Cache, DecoderOnly, EncoderDecoder, build
from models.experiments.report import Claim, Found, markdown_table
from models.experiments.spelled import BOS, EOS, PAD, SEP, Corpus, Pair, corpus
from models.experiments.timing import seconds
from models.generate import greedy
from models.progress import progress

PAIR, SINGLE = "encoder-decoder", "decoder-only"
IGNORED = -100  # no loss here
POSITIONS = 64


@dataclass(frozen=True)
class Setting:
    """The task, the models and the training; `layers` of each of two stacks, twice as many of the single one."""

    train: int = 1_000
    test: int = 2_000
    limit: int = 100_000
    vocab_size: int = 100
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    steps: int = 400
    batch: int = 64
    learning_rate: float = 2e-3
    warm_up: int = 100
    seed: int = 0


@dataclass
class Learned:
    """A trained model and what became of it."""

    parameters: int
    losses: list[float]
    seconds: float
    translations: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """Both models on the same held-out numbers."""

    setting: Setting
    corpus: Corpus
    learned: dict[str, Learned]

    @property
    def truth(self) -> list[str]:
        return [pair.german for pair in self.corpus.test]

    def exact(self, kind: str) -> float:
        """Share of held-out numbers that are right to the last letter."""
        return float(np.mean([a == b for a, b in zip(self.learned[kind].translations, self.truth, strict=True)]))

    def bleu(self, kind: str) -> tuple[float, str]:
        """Corpus BLEU over letters (a number is one word in German), and sacrebleu's signature."""
        from sacrebleu.metrics import BLEU

        metric = BLEU(tokenize="char")
        score = metric.corpus_score(self.learned[kind].translations, [self.truth]).score
        return score, str(metric.get_signature())


def configs(setting: Setting, vocab_size: int) -> dict[str, ModelConfig]:
    """The two models. The decoder-only one gets the feed-forward width that makes parameters equal."""
    heads = setting.hidden_size // 32
    causal = Attention(heads, heads, 32, rotary=Rotary())
    norm, mlp = Norm("rmsnorm", 1e-6), FeedForward(setting.intermediate_size, "silu", gated=True)
    both = replace(causal, causal=False)
    cross = replace(both, rotary=None)
    encoder = Stack((Block(both, mlp, norm),) * setting.layers, norm)
    decoder = Stack((Block(causal, mlp, norm, cross_attn=cross),) * setting.layers, norm)
    sizes = vocab_size, setting.hidden_size, POSITIONS
    pair = ModelConfig(*sizes, decoder, encoder, name=PAIR)

    def single(width: int) -> ModelConfig:
        block = Block(causal, replace(mlp, intermediate_size=width), norm)
        return ModelConfig(*sizes, Stack((block,) * (2 * setting.layers), norm), name=SINGLE)

    wanted, base = parameters(pair), setting.intermediate_size
    a_column = parameters(single(base + 1)) - parameters(single(base))
    return {PAIR: pair, SINGLE: single(base + round((wanted - parameters(single(base))) / a_column))}


def initialised(model: nn.Module, seed: int) -> nn.Module:
    """Embedding N(0, 1); matrices N(0, 1/inputs), those that end a sublayer over √(2·layers). With gradients.

    Source: Radford et al. 2019 (the last factor).
    """
    generator = torch.Generator().manual_seed(seed)
    depth = sum(isinstance(child, nn.ModuleList) and len(child) for child in model.modules())
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(parameter, generator=generator)
        elif parameter.dim() == 2:
            ends = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = parameter.shape[1] ** -0.5 / (math.sqrt(2 * depth) if ends else 1)
            nn.init.normal_(parameter, std=std, generator=generator)
    return model.requires_grad_(True).train()


def padded(rows: list[list[int]], pad: int = PAD) -> torch.Tensor:
    """Rows of unequal length, padded behind, [B, T]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


def pair_loss(model: EncoderDecoder, pairs: list[Pair]) -> torch.Tensor:
    """Cross entropy of the target's tokens and its end, given the source."""
    source_BX = padded([pair.source for pair in pairs])
    inputs_BT = padded([[BOS, *pair.target] for pair in pairs])
    wanted_BT = padded([[*pair.target, EOS] for pair in pairs], IGNORED)
    logits_BTV = model(source_BX, inputs_BT, source_BX != PAD)
    return F.cross_entropy(logits_BTV.flatten(0, 1), wanted_BT.flatten(), ignore_index=IGNORED)


def single_loss(model: DecoderOnly, pairs: list[Pair]) -> torch.Tensor:
    """The same of one sequence, source <sep> target. Padding behind is seen by no token that has a loss."""
    inputs_BT = padded([[*pair.source, SEP, *pair.target] for pair in pairs])
    wanted_BT = padded([[IGNORED] * len(pair.source) + [*pair.target, EOS] for pair in pairs], IGNORED)
    return F.cross_entropy(model(inputs_BT).flatten(0, 1), wanted_BT.flatten(), ignore_index=IGNORED)


def train(model: nn.Module, loss_of: Callable, setting: Setting, pairs: list[Pair]) -> list[float]:
    """AdamW, linear warm-up and cosine decay, gradients clipped at 1. Returns the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def rate(step: int) -> float:
        decay = 0.5 + 0.5 * math.cos(math.pi * step / setting.steps)
        return min(1.0, (step + 1) / setting.warm_up) * decay

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    generator = torch.Generator().manual_seed(setting.seed)
    losses = []
    for _ in progress(range(setting.steps), f"train {model.config.name}"):
        chosen = torch.randint(len(pairs), (setting.batch,), generator=generator)
        loss = loss_of(model, [pairs[i] for i in chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def translate_pair(model: EncoderDecoder, sources: list[list[int]], longest: int) -> list[list[int]]:
    """Greedy targets, at most `longest` tokens, with both caches."""
    source_BX = padded(sources)
    cross = model.encode(source_BX, source_BX != PAD)
    cache = Cache.empty(model.config, len(sources), longest)
    token_ids_B1 = torch.full((len(sources), 1), BOS)
    steps = []
    for _ in range(longest):
        token_ids_B1 = model.decode(token_ids_B1, cross, cache)[:, -1:].argmax(-1)
        steps.append(token_ids_B1)
    return [row[: row.index(EOS)] if EOS in row else row for row in torch.cat(steps, 1).tolist()]


def translate_single(model: DecoderOnly, sources: list[list[int]], longest: int) -> list[list[int]]:
    """The same by the decoder-only model."""
    return greedy(model, [[*source, SEP] for source in sources], longest, EOS)


TASKS = {PAIR: (pair_loss, translate_pair), SINGLE: (single_loss, translate_single)}


def learn(kind: str, config: ModelConfig, setting: Setting, data: Corpus) -> Learned:
    """Build, train and test one of the models."""
    loss_of, translate = TASKS[kind]
    model = initialised(build(config), setting.seed)
    losses: list[float] = []
    spent = seconds(lambda: losses.extend(train(model, loss_of, setting, data.train)))
    model.requires_grad_(False).eval()
    longest = max(len(pair.target) for pair in data.train + data.test) + 1
    found = Learned(parameters(config), losses, spent)
    for start in range(0, len(data.test), 100):
        sources = [pair.source for pair in data.test[start : start + 100]]
        found.translations += map(data.text, translate(model, sources, longest))
    return found


def run(setting: Setting) -> Result:
    """Train and test both."""
    data = corpus(setting.train, setting.test, setting.limit, setting.vocab_size, setting.seed)
    made = configs(setting, data.vocab_size)
    return Result(setting, data, {kind: learn(kind, config, setting, data) for kind, config in made.items()})


def claims(result: Result) -> list[Claim]:
    """Equal size, and what was learned."""
    sizes = [one.parameters for one in result.learned.values()]
    apart = max(sizes) / min(sizes) - 1
    seen = {pair.german for pair in result.corpus.train} & set(result.truth)
    found = [
        Claim("parameters equal within 1%", f"{apart:.2%} apart", apart <= 0.01),
        Claim("no held-out number was seen in training", f"{len(seen)} seen", not seen),
    ]
    for kind in result.learned:
        found.append(
            Claim(
                f"{kind}: more than 90% of the held-out numbers right",
                f"{result.exact(kind):.1%}",
                result.exact(kind) > 0.9,
            )
        )
    pair, single = (result.bleu(kind)[0] for kind in (PAIR, SINGLE))
    within = f"decoder-only {single:.2f}, encoder-decoder {pair:.2f}"
    return [*found, Claim("text: decoder-only is within a couple of BLEU points", within, single > pair - 2)]


def _mistakes(result: Result) -> str:
    rows = []
    for kind, learned in result.learned.items():
        wrong = [(a, b) for a, b in zip(learned.translations, result.truth, strict=True) if a != b]
        rows += [[kind, said, truth] for said, truth in wrong[:5]]
    return markdown_table(rows, ["model", "said", "right"]) if rows else "No mistakes."


def _scores(result: Result) -> str:
    rows = []
    for kind, one in result.learned.items():
        last = float(np.mean(one.losses[-20:]))
        scores = [f"{result.exact(kind):.1%}", f"{result.bleu(kind)[0]:.2f}"]
        rows.append([kind, one.parameters, f"{last:.4f}", *scores, f"{one.seconds:.0f} s"])
    return markdown_table(rows, ["model", "parameters", "last loss", "exact match", "BLEU", "training"])


def report(result: Result) -> Found:
    """Scores, mistakes, and how it was trained."""
    s = result.setting
    lengths = [float(np.mean([len(getattr(p, side)) for p in result.corpus.train])) for side in ("source", "target")]
    example = result.corpus.test[0]
    spelled = " ".join(map(result.corpus.tokenizer.id_to_token, example.target))
    body = [
        _scores(result),
        f"{s.test:,} numbers are held out, BLEU is over letters, since a German number is one word: "
        f"`{result.bleu(PAIR)[1]}`. Decoding is greedy, with caches.",
        "## Mistakes, the first of each",
        _mistakes(result),
        "## How",
        f"Numbers from 0 to {s.limit - 1:,}, spelled by num2words: {s.train:,} to learn from. One byte-pair encoding "
        f"of {result.corpus.vocab_size} tokens, learned from those; {lengths[0]:.1f} tokens a source and "
        f"{lengths[1]:.1f} a target on average. {example.german} is `{spelled}`.",
        f"Width {s.hidden_size}, heads of 32, {s.layers} + {s.layers} layers with a feed-forward of "
        f"{s.intermediate_size}, or {2 * s.layers} layers with the width that makes parameters equal. {s.steps} steps "
        f"of {s.batch} pairs, AdamW (0.9, 0.98), learning rate {s.learning_rate:g} after {s.warm_up} steps of warm-up, "
        "cosine decay to 0, weight decay 0.01, gradients clipped at 1, fp32, no dropout. Initial weights: embedding "
        "N(0, 1), matrices N(0, 1/inputs), those that end a sublayer divided by √(2·layers).",
        "The task is regular, and numbers are alike: it shows that both wirings learn to reorder and to copy, not how "
        "they compare on sentences.",
    ]
    return Found(
        "Translation: an encoder-decoder and a decoder-only model of equal size",
        body,
        claims(result),
        lambda figure: draw(result, figure),
        "Training loss of the target's tokens, mean of 10 steps",
        f"{s.seed} of the numbers, of the batches and of both models' weights",
    )


def draw(result: Result, figure) -> None:
    axes, together = figure.subplots(), 10
    for kind, one in result.learned.items():
        whole = len(one.losses) // together * together
        means = np.reshape(one.losses[:whole], (-1, together)).mean(-1)
        axes.plot(together * (1 + np.arange(len(means))), means, label=kind)
    axes.set(yscale="log", xlabel="step", ylabel="loss, nats a token")
    axes.legend()


def experiment() -> Found:
    return report(run(Setting()))
