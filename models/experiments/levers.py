"""Three levers on one model: a tied head, fewer key/value heads, windows. Parameters, cache, and measured speed.

Decode steps of a model whose cache is filled with a long context, in turns. Then the same levers on a released model,
counted only.
Source: Press & Wolf 2017, arXiv:1608.05859; Ainslie et al. 2023, arXiv:2305.13245; Beltagy et al. 2020,
arXiv:2004.05150.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from archcalc.config import ModelConfig
from archcalc.cost import Pass, bound, cache_elements, parameters, total
from archcalc.hf import config_from_keys
from archcalc.presets import preset
from archcalc.units import duration, scaled
from models import Cache, DecoderOnly, build
from models.experiments.report import Claim, Found, markdown_table
from models.experiments.timing import medians

BASE, TIED, EVERY, HALF = "base", "tied head", "window in every layer", "window in every second layer"
BIG, BIG_CONTEXT, BIG_WINDOW = "llama3-8b", 32_768, 4096


@dataclass(frozen=True)
class Setting:
    """The small model, its window, and the context of a decode step, in tokens."""

    layers: int = 8
    hidden_size: int = 256
    heads: int = 8
    vocab_size: int = 4096
    context: int = 8192
    window: int = 1024
    rounds: int = 15


@dataclass(frozen=True)
class Variant:
    """What a lever makes of a model: counts at the context, and seconds of a decode step where it was measured."""

    name: str
    parameters: int
    cache_bytes: int
    flops: int
    found_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Result:
    """The variants of the small model, measured, and of the big one, counted."""

    setting: Setting
    small: dict[str, Variant]
    big: dict[str, Variant]


def kv_heads(heads: int) -> list[int]:
    """Divisors of the number of query heads, from all to one."""
    return [k for k in range(heads, 0, -1) if heads % k == 0]


def levers(heads: int, layers: int, window: int) -> dict[str, dict[str, Any]]:
    """Overrides by name; `base` has an untied head, a key head for each query head, no window."""
    sliding = {"sliding_window": window, "layer_types": ["sliding_attention"] * layers}
    half = {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2)}
    found: dict[str, dict[str, Any]] = {BASE: {}, TIED: {"tie_word_embeddings": True}}
    found |= {f"{k} of {heads} key heads": {"num_key_value_heads": k} for k in kv_heads(heads)[1:]}
    return found | {EVERY: sliding, HALF: sliding | half}


def small(setting: Setting, overrides: dict[str, Any]) -> ModelConfig:
    """A llama with room for the context and the steps that are measured."""
    base = {"model_type": "llama", "hidden_size": setting.hidden_size, "intermediate_size": 2 * setting.hidden_size}
    base |= {"num_hidden_layers": setting.layers, "num_attention_heads": setting.heads, "tie_word_embeddings": False}
    base |= {"num_key_value_heads": setting.heads, "vocab_size": setting.vocab_size}
    return config_from_keys(base | {"max_position_embeddings": setting.context + 1024}, overrides)


def counted(config: ModelConfig, name: str, context: int, bytes_each: int) -> Variant:
    """The counts of a variant: one sequence, a decode step over `context` tokens, its own included."""
    step = bound(config)[1]
    kept = sum(cache_elements(step, 1, context)) * bytes_each
    flops = total(Pass("decode", {"B": 1, "T": 1, "S": context, "R": 1}, step)).flops
    return Variant(name, parameters(config), kept, flops)


def filled(config: ModelConfig, tokens: int) -> Cache:
    """A growing cache of so many tokens: random keys and values, since a prefill would take minutes to make them."""
    cache = Cache.empty(config, 1)
    cache.advance(None, 1, tokens, "cpu")
    generator = torch.Generator().manual_seed(0)
    for block, past in zip(config.decoder.layers, cache.layers, strict=True):
        shape = (1, block.self_attn.num_key_value_heads, tokens, block.self_attn.head_dim)
        past.append(*(torch.randn(shape, generator=generator) for _ in range(2)))
    return cache


def decode_step(model: DecoderOnly, cache: Cache) -> Callable[[], object]:
    """A function that runs one decode step; the cache grows by its token."""
    token_11 = torch.zeros((1, 1), dtype=torch.int64)

    @torch.no_grad()
    def step() -> torch.Tensor:
        return model(token_11, cache=cache)

    return step


def run(setting: Setting) -> Result:
    """Count all variants, and time those of the small model in turns."""
    chosen = {n: small(setting, o) for n, o in levers(setting.heads, setting.layers, setting.window).items()}
    models = {name: build(config) for name, config in chosen.items()}
    caches = {name: filled(config, setting.context - 1) for name, config in chosen.items()}
    steps = {name: decode_step(models[name], caches[name]) for name in chosen}
    for step in steps.values():
        step()  # so the context is full
    held = {name: cache.nbytes for name, cache in caches.items()}
    spent = medians(steps, setting.rounds, repeat=3)
    found = {}
    for name, config in chosen.items():
        one = counted(config, name, setting.context, 4)
        found[name] = Variant(name, one.parameters, one.cache_bytes, one.flops, held[name], spent[name])
    layers = len(preset(BIG).decoder.layers)
    big = {
        name: counted(preset(BIG, {"num_key_value_heads": 32} | overrides), name, BIG_CONTEXT, 2)
        for name, overrides in levers(32, layers, BIG_WINDOW).items()
    }
    return Result(setting, found, big)


def claims(result: Result) -> list[Claim]:
    """Counts that must be exact, and the order of the measured speeds."""
    s, base = result.setting, result.small[BASE]
    one_head = result.small[f"1 of {s.heads} key heads"]
    saved = base.parameters - result.small[TIED].parameters
    equal = sum(v.cache_bytes == v.found_bytes for v in result.small.values())
    cache = base.cache_bytes / one_head.cache_bytes
    faster = {name: base.seconds / v.seconds for name, v in result.small.items()}
    tied, one, every = (faster[name] for name in (TIED, one_head.name, EVERY))
    return [
        Claim(
            "tying saves one matrix",
            f"{saved:,} = {s.vocab_size:,}·{s.hidden_size}",
            saved == s.vocab_size * s.hidden_size,
        ),
        Claim(
            "cache bytes derived are those that the cache has",
            f"{equal} of {len(result.small)}",
            equal == len(result.small),
        ),
        Claim(f"one key head of {s.heads} divides the cache by {s.heads}", f"{cache:g}", cache == s.heads),
        Claim(
            "a tied head is no faster: the matrix is read all the same", f"{tied:.2f}x", 0.8 < tied < 1.25, timed=True
        ),
        Claim("one key head is faster than a key head for each query head", f"{one:.2f}x", one > 1.1, timed=True),
        Claim("a window in every layer is faster than none", f"{every:.2f}x", every > 1.1, timed=True),
        Claim("and than one in every second layer", f"{every / faster[HALF]:.2f}x", every > faster[HALF], timed=True),
    ]


def _row(v: Variant, base: Variant) -> list[Any]:
    less = [
        f"{v.parameters / base.parameters:.1%}",
        scaled(v.cache_bytes, "B"),
        f"{v.cache_bytes / base.cache_bytes:.1%}",
    ]
    row = [v.name, v.parameters, *less, scaled(v.flops, "FLOPs")]
    return row if v.seconds is None else [*row, duration(v.seconds), f"{1 / v.seconds:.1f}"]


def report(result: Result) -> Found:
    """Two tables: the small model measured, the big one counted."""
    s = result.setting
    headers = ["variant", "parameters", "of base", "KV cache", "of base", "FLOPs of a step"]
    measured = [_row(v, result.small[BASE]) for v in result.small.values()]
    big = [_row(v, result.big[BASE]) for v in result.big.values()]
    body = [
        f"## Measured: a llama of {s.layers} layers, width {s.hidden_size}, {s.heads} heads, fp32",
        f"One sequence with {s.context:,} tokens (random keys and values) in a growing cache, PyTorch in eager mode, "
        f"windows of {s.window:,}. "
        "Medians of turns; a step appends to the cache by making it anew, so its bytes are read and written.",
        markdown_table(measured, [*headers, "a step", "tokens a second"]),
        f"## Counted: {BIG} in 16 bits at {BIG_CONTEXT:,} tokens, windows of {BIG_WINDOW:,}",
        markdown_table(big, headers),
        f"The released {BIG} has an untied head, 8 of 32 key heads and no window.",
    ]
    return Found(
        "Levers: tying, grouped queries, windows",
        body,
        claims(result),
        lambda figure: draw(result, figure),
        f"KV cache and measured decode speed of the variants at {s.context:,} tokens",
        "0 of weights, and of keys and values",
        (7.0, 3.8),
    )


def draw(result: Result, figure) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(result.small)[::-1]
    variants = [result.small[name] for name in names]
    left.barh(names, [v.cache_bytes / 1e6 for v in variants])
    right.barh(names, [1 / v.seconds for v in variants], color="tab:green")
    left.set(xlabel="KV cache, MB")
    right.set(xlabel="tokens a second")


def experiment() -> Found:
    return report(run(Setting()))
