"""The sweep against the integers of a report, point by point."""

import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from representatives import one_a_type

from archcalc import sweep as sweep_module
from archcalc.cost import bound, cache_elements, passes
from archcalc.errors import ConfigError
from archcalc.hardware import device
from archcalc.precision import precision
from archcalc.presets import preset
from archcalc.report import report
from archcalc.request import Request
from archcalc.roofline import roofline
from archcalc.sweep import EXACT_BELOW, sweep

WINDOWED = preset("tiny-decoder", {"model_type": "mistral", "sliding_window": 9, "max_position_embeddings": 2**20})
ODD = preset("gpt2", {"n_embd": 15, "n_head": 3, "n_inner": 21, "vocab_size": 97, "n_positions": 2**20})
NAMES = [*one_a_type(), "tiny-encoder-decoder"]
CONFIGS = [*(replace(preset(name), max_position_embeddings=2**20) for name in NAMES), WINDOWED, ODD]


def points(seed: int, count: int, longest: int = 20_000):
    """Small and large ones: sizes are drawn from all magnitudes."""
    draw = random.Random(seed)
    sizes = [[int(top ** draw.random()) for top in (4096, longest)] for _ in range(count)]
    return np.array([s[0] for s in sizes]), np.array([s[1] for s in sizes])


def check(found: np.ndarray, expected: list[int], where) -> int:
    """Equal where a float64 holds every whole number, close above; returns how many were exact."""
    exact = [(f, e) for f, e in zip(found.tolist(), expected, strict=True) if e < EXACT_BELOW]
    assert [int(f) for f, _ in exact] == [e for _, e in exact], where
    assert found.tolist() == pytest.approx([float(e) for e in expected], rel=1e-14), where
    return len(exact)


@pytest.mark.parametrize("config", CONFIGS, ids=[*NAMES, "windowed", "odd sizes"])
@pytest.mark.parametrize(
    ("run", "weights", "dense"), [("decode", "bf16", False), ("first", "int4", False), ("first", "fp8", True)]
)
def test_a_sweep_equals_the_integers(config, run, weights, dense):
    if run == "decode" and not config.decoder:
        with pytest.raises(ConfigError, match="run='decode': a model without a decoder has none; give run='first'"):
            sweep(config, 1, 1, run=run)
        return
    batch, context = points(len(run), 60, 3000)
    found = sweep(config, batch, context, run=run, source=77, weights=weights, kv_cache="fp32", dense=dense)
    expected = []
    for B, S in zip(batch.tolist(), context.tolist(), strict=True):
        prompt = 77 if run == "decode" else S
        chosen = passes(config, B, prompt, S)[-1 if run == "decode" else 0]
        limit = roofline(chosen, device("h100-sxm"), precision(weights), precision("fp32"), dense)
        own, cross, _ = cache_elements(bound(config)[1], B, S, config.source_tokens(prompt))
        kept = cross if run == "first" and config.encoder else own + cross
        expected.append((limit.flops, limit.bytes, 4 * kept, limit.seconds))
    flops, moved, kept, seconds = map(list, zip(*expected, strict=True))
    assert check(found.flops[0], flops, "flops") > 10
    check(found.bytes[0], moved, "bytes")
    check(found.kv_bytes[0], kept, "kv_bytes")
    assert found.seconds[0].tolist() == pytest.approx(seconds, rel=1e-12)


def test_several_models_and_broadcasting():
    configs = [preset("llama3-8b"), preset("mixtral-8x7b")]
    batch, context = np.array([1, 8, 64])[:, None], np.array([128, 4096])
    grid = sweep(configs, batch, context)
    assert grid.flops.shape == grid.seconds.shape == (2, 3, 2)
    for row, config in enumerate(configs):
        for i, B in enumerate((1, 8, 64)):
            for j, S in enumerate((128, 4096)):
                single = sweep(config, B, S)
                assert single.flops.shape == (1,)
                assert [grid[c][row, i, j] for c in range(4)] == [column[0] for column in single]


def test_chunks_do_not_show(monkeypatch):
    batch, context = points(3, 1000)
    whole = sweep(WINDOWED, batch, context)
    monkeypatch.setattr(sweep_module, "CHUNK", 7)
    for one, other in zip(whole, sweep(WINDOWED, batch, context), strict=True):
        assert np.array_equal(one, other)


def test_no_points_and_last_logits():
    assert sweep(preset("gpt2"), np.array([], int), np.array([], int)).flops.shape == (1, 0)
    every, last = (sweep(preset("gpt2"), 1, 10, run="first", last_logits=flag).flops[0] for flag in (False, True))
    assert every - last == 2 * 9 * 768 * 50257


@pytest.mark.parametrize(
    ("batch", "context", "message"),
    [
        ([1, 0], [5, 5], "batch=0"),
        ([1, 1], [5, -1], "context=-1"),
        ([1.5, 2.0], [5, 5], "batch: float64 is no type of whole numbers"),
        ([1, 1], [5, 1025], "max_position_embeddings=1024"),
    ],
)
def test_what_is_no_request_is_refused(batch, context, message):
    with pytest.raises(ConfigError, match=message):
        sweep(preset("gpt2"), batch, context)


def test_unknown_run_is_refused():
    with pytest.raises(ConfigError, match="run='prefill': not understood; use one of decode, first"):
        sweep(preset("gpt2"), 1, 1, run="prefill")


def test_points_are_computed_as_arrays_not_one_by_one():
    """Against the integers of a report, in the same run, a point is 20 times cheaper at least (800 times, in fact)."""
    config, points = preset("llama3-8b"), 200_000
    batch, context = np.full(points, 3), np.arange(1, points + 1)
    began = time.perf_counter()
    found = sweep(config, batch, context)
    swept = (time.perf_counter() - began) / points
    began = time.perf_counter()
    for size in range(1, 51):
        report(config, Request(batch=3, prompt=size, context=size))
    assert (time.perf_counter() - began) / 50 > 20 * swept
    assert found.flops.shape == (1, points)


def test_only_a_sweep_imports_numpy():
    script = """
import sys
import archcalc, archcalc.cli, archcalc.roofline, archcalc.report, archcalc.render
heavy = {"torch", "numpy", "sympy", "onnx"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import archcalc.sweep
assert heavy & set(sys.modules) == {"numpy"}, heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
