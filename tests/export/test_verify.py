"""Verification passes on a right build, and fails on every kind of wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from archcalc.errors import ConfigError
from archcalc.presets import preset
from export.build import build
from export.generate import greedy
from export.graph import WEIGHTS
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from models.generate import greedy as greedy_torch


def test_fp32_agrees_with_pytorch(tiny, engine, tiny_model):
    verdict = verify(tiny, engine, tiny_model)
    assert verdict.passed
    assert 0 < verdict.worst_logits < 1e-5
    assert 0 < verdict.worst_cache < 1e-5
    assert verdict.tokens == verdict.tokens_agreed == 11 * 4


CONFIGS = {
    "gpt": ("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 64}),
    "window": ("tiny-decoder", {"sliding_window": 5}),
    "tied": ("tiny-decoder", {"tie_word_embeddings": True}),
    "post-norm": ("tiny-decoder", {"norm_placement": "post"}),
    "biases": ("tiny-decoder", {"attention_bias": True, "mlp_bias": True}),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_part_agrees_in_every_precision(name, precision, tmp_path):
    config = preset(*CONFIGS[name])
    model, origin = reference(config, "random")
    made = build(config, tmp_path / "build", precision, (32,), model, origin)
    verdict = verify(made, OnnxRuntimeEngine(made, 32), model)
    assert verdict.passed, verdict.problems
    assert verdict.worst_logits > 0  # two implementations: equal to the bit would mean one was compared with itself


class Wrong:
    """An engine with one thing wrong."""

    def __init__(self, engine, change):
        self._engine, self._change = engine, change

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, ids, positions, write, logit, cache):
        return self._engine.run(*self._change(ids.copy(), positions.copy(), write.copy(), logit.copy()), cache)


WRONG = {
    "a position off by one": lambda i, p, w, at: (i, p + (p > 0), w, at),
    "a cache slot off by one": lambda i, p, w, at: (i, p, w + (w > 0), at),
    "another token": lambda i, p, w, at: (np.where(p == 3, (i + 1) % 256, i), p, w, at),
    "logits of the token before": lambda i, p, w, at: (i, p, w, np.maximum(at - 1, 0)),
    "a mask that shows the future": lambda i, p, w, at: (i, np.where(p == p.max(), p + 1, p), w, at),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_engine_fails(tiny, engine, tiny_model, name):
    verdict = verify(tiny, Wrong(engine, WRONG[name]), tiny_model)
    assert not verdict.passed
    assert "differ by" in verdict.problems[0]


def test_one_wrong_weight_fails(copied, tiny_model):
    weights = np.memmap(copied.folder / WEIGHTS, np.float32, "r+")
    weights[-5] += 0.5  # in the head
    weights.flush()
    assert not verify(copied, OnnxRuntimeEngine(copied, 32), tiny_model).passed


def test_a_transposed_weight_fails(tiny, engine):
    model = reference(tiny.config, "random")[0]
    o_proj = model.layers[0].self_attn.o_proj
    o_proj.weight = torch.nn.Parameter(o_proj.weight.T.contiguous(), requires_grad=False)
    assert not verify(tiny, engine, model).passed


def test_nan_fails(tiny, engine, tiny_model):
    class NotANumber(Wrong):
        def run(self, *args):
            return self._engine.run(*args) * np.nan

    assert not verify(tiny, NotANumber(engine, None), tiny_model).passed


def test_an_activation_that_fp16_cannot_hold_fails(tmp_path):
    config = preset("tiny-decoder")
    model, origin = reference(config, "random")
    model.layers[0].mlp.down_proj.weight *= 1e9  # ONNX Runtime on a CPU may well get away with it
    made = build(config, tmp_path / "build", "fp16", (32,), model, origin)
    verdict = verify(made, OnnxRuntimeEngine(made, 32), model)
    assert any("an activation reaches" in problem for problem in verdict.problems)


def test_greedy_tokens_equal_pytorchs_for_unequal_prompts(engine, tiny_model):
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9], [250, 3, 17]]
    mine = greedy(engine, prompts, 20)
    assert mine == greedy_torch(tiny_model, prompts, 20)
    assert [greedy(engine, [prompt], 20)[0] for prompt in prompts] == mine
    stop = mine[0][4]
    assert greedy(engine, prompts[:1], 20, eos=stop)[0] == mine[0][: mine[0].index(stop)]


def test_a_full_cache_is_refused(engine):
    assert len(greedy(engine, [[1] * 12], 20)[0]) == 20  # the last slot is used
    with pytest.raises(ConfigError, match=r"context=33: the cache holds capacity=32"):
        greedy(engine, [[1] * 13], 21)
    with pytest.raises(ConfigError, match="every prompt needs a token"):
        greedy(engine, [[]], 4)
