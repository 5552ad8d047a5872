"""The encoder runs once a sentence, the decoder once a token: what the two caches of an encoder-decoder save.

A sentence of T tokens becomes one of T tokens, greedily, in three ways: nothing is kept; the encoder's output is kept
as keys and values of cross-attention; the decoder's own past is kept, too. All three must say the same.
Source: Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from archcalc.config import ModelConfig
from archcalc.cost import Pass, bound, total
from archcalc.hf import config_from_keys
from archcalc.units import duration, scaled
from models import Cache, EncoderDecoder, build
from models.experiments.report import Claim, Found, markdown_table
from models.experiments.timing import medians

NOTHING, CROSS, BOTH = "nothing kept", "cross cache", "both caches"
BOS = 0


@dataclass(frozen=True)
class Setting:
    """Layers of each stack, width, lengths of a sentence in tokens."""

    layers: int = 6
    hidden_size: int = 256
    lengths: tuple[int, ...] = (8, 16, 32, 64)
    rounds: int = 3


@dataclass(frozen=True)
class Seen:
    """What one run did: its tokens, the FLOPs that torch counted, and trips up encoder and decoder."""

    tokens: list[int]
    flops: int
    trips: tuple[int, int]


@dataclass(frozen=True)
class Result:
    """By (what is kept, length): FLOPs derived, what was seen of a run, and its seconds."""

    setting: Setting
    derived: dict[tuple[str, int], int]
    seen: dict[tuple[str, int], Seen]
    seconds: dict[tuple[str, int], float]


def config(setting: Setting) -> ModelConfig:
    """The block of 2017."""
    sizes = {"d_model": setting.hidden_size, "vocab_size": 8000, "max_position_embeddings": max(setting.lengths) + 1}
    stacks = {}
    for side in ("encoder", "decoder"):
        stacks |= {f"{side}_layers": setting.layers, f"{side}_attention_heads": 4}
        stacks[f"{side}_ffn_dim"] = 4 * setting.hidden_size
    return config_from_keys({"model_type": "marian", "activation_function": "relu"} | sizes | stacks)


@torch.no_grad()
def translate(model: EncoderDecoder, source_ids_1X: torch.Tensor, tokens: int, kept: str) -> list[int]:
    """`tokens` greedy tokens of one sentence."""
    ids = [BOS]
    cross = None if kept == NOTHING else model.encode(source_ids_1X)
    cache = Cache.empty(model.config, 1, tokens) if kept == BOTH else None
    for _ in range(tokens):
        seen = ids[-1:] if kept == BOTH else ids
        read = cross or model.encode(source_ids_1X)
        logits_1TV = model.decode(torch.tensor([seen]), read, cache)
        ids.append(int(logits_1TV[0, -1].argmax()))
    return ids[1:]


def derived_flops(config: ModelConfig, tokens: int, kept: str) -> int:
    """FLOPs of `translate` by the op list, every pair counted and logits of all positions, as the model computes."""
    once, step = bound(config)
    encode = total(Pass("encode", {"B": 1, "T": tokens, "S": tokens}, once), dense=True).flops
    spent = encode if kept != NOTHING else encode * tokens
    for length in range(1, tokens + 1):
        new, slots = (1, tokens) if kept == BOTH else (length, length)
        dims = {"B": 1, "T": new, "S": slots, "X": tokens, "R": new}
        spent += total(Pass("decode", dims, step), dense=True).flops
    return spent


def watched(model: EncoderDecoder, run: Callable[[], list[int]]) -> Seen:
    """Run once, with torch's FLOP counter and a hook on the first layer of each stack."""
    trips = [0, 0]

    def counter(side: int) -> Callable[..., None]:
        def count(*_) -> None:
            trips[side] += 1

        return count

    stacks = model.encoder, model.decoder
    hooks = [stack.layers[0].register_forward_hook(counter(side)) for side, stack in enumerate(stacks)]
    with FlopCounterMode(display=False) as flops:
        tokens = run()
    for hook in hooks:
        hook.remove()
    return Seen(tokens, flops.get_total_flops(), (trips[0], trips[1]))


def run(setting: Setting) -> Result:
    """Every way at every length: derived, counted, timed in turns."""
    model = build(config(setting))
    generator = torch.Generator().manual_seed(0)
    size = (1, max(setting.lengths))
    source_ids = torch.randint(1, model.config.vocab_size, size, generator=generator)
    keys = [(kept, length) for length in setting.lengths for kept in (NOTHING, CROSS, BOTH)]
    runs = {(kept, n): lambda kept=kept, n=n: translate(model, source_ids[:, :n], n, kept) for kept, n in keys}
    return Result(
        setting,
        {(kept, n): derived_flops(model.config, n, kept) for kept, n in keys},
        {key: watched(model, one) for key, one in runs.items()},
        medians(runs, setting.rounds),
    )


def claims(result: Result) -> list[Claim]:
    """What the longest sentence shows, and what holds at each length."""
    derived, seen, lengths = result.derived, result.seen, result.setting.lengths
    n = max(lengths)
    equal = sum(derived[key] == one.flops for key, one in seen.items())
    trips = all((seen[NOTHING, t].trips, seen[BOTH, t].trips) == ((t, t), (1, t)) for t in lengths)
    same = sum(seen[NOTHING, t].tokens == seen[CROSS, t].tokens == seen[BOTH, t].tokens for t in lengths)
    ordered = sum(derived[NOTHING, t] > derived[CROSS, t] > derived[BOTH, t] for t in lengths)
    saved = derived[NOTHING, n] / derived[BOTH, n]
    faster = result.seconds[NOTHING, n] / result.seconds[BOTH, n]
    went = f"{seen[BOTH, n].trips}; {seen[NOTHING, n].trips}"
    return [
        Claim("FLOPs derived are those that torch counts", f"{equal} of {len(seen)}", equal == len(seen)),
        Claim(f"trips up encoder and decoder for {n} tokens: 1 and {n}; without caches {n} and {n}", went, trips),
        Claim("the three ways say the same tokens", f"{same} of {len(lengths)} lengths", same == len(lengths)),
        Claim("each cache saves FLOPs", f"{ordered} of {len(lengths)} lengths", ordered == len(lengths)),
        Claim(f"both caches divide the FLOPs of {n} tokens by more than {n // 2}", f"{saved:.1f}", saved > n // 2),
        Claim(f"and the measured time of {n} tokens by more than 2", f"{faster:.1f}", faster > 2, timed=True),
    ]


def report(result: Result) -> Found:
    """FLOPs and time by length."""
    s, ways = result.setting, (NOTHING, CROSS, BOTH)
    flops = [[n, *(f"{scaled(result.derived[w, n], 'FLOPs')}" for w in ways)] for n in s.lengths]
    times = [[n, *(duration(result.seconds[w, n]) for w in ways)] for n in s.lengths]
    trips = [[n, *(" and ".join(map(str, result.seen[w, n].trips)) for w in ways)] for n in s.lengths]
    headers = ["tokens", *ways]
    body = [
        f"The block of 2017, {s.layers} layers a side, width {s.hidden_size}, 8,000 words, random weights, one "
        "sentence at a time; a source of T tokens becomes T tokens. Every pair counts and logits of all positions are "
        "made, as the model computes: with both caches the decoder's own has T slots from the start.",
        "## FLOPs of a sentence",
        markdown_table(flops, headers),
        "Without a cache the encoder's T passes over T tokens, and the decoder's over 1 to T, both grow as T²; the "
        "cross cache takes the first away, the decoder's own the second, and what is left grows as T.",
        "## Measured time of a sentence, PyTorch, medians of turns",
        markdown_table(times, headers),
        "Time falls less than FLOPs: a pass over one token reads as many weights as a pass over many.",
        "## Trips up the encoder and up the decoder",
        markdown_table(trips, headers),
    ]
    return Found(
        "Encoder once: what the caches of an encoder-decoder save",
        body,
        claims(result),
        lambda figure: draw(result, figure),
        "FLOPs and measured time of a sentence over its length",
        "0 of weights and of the source",
    )


def draw(result: Result, figure) -> None:
    lengths = result.setting.lengths
    both = (("FLOPs", result.derived, 1), ("milliseconds", result.seconds, 1000))
    for axes, (label, found, factor) in zip(figure.subplots(1, 2), both, strict=True):
        for way in (NOTHING, CROSS, BOTH):
            axes.plot(lengths, [factor * found[way, n] for n in lengths], marker="o", ms=3, label=way)
        axes.set(xscale="log", yscale="log", xlabel="tokens of the sentence", title=label)
        axes.set_xticks(lengths, lengths)
        axes.minorticks_off()
    axes.legend()


def experiment() -> Found:
    return report(run(Setting()))
