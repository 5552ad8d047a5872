"""Verification passes on a right build, and fails on every kind of wrong one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.presets import preset
from export.build import build
from export.generate import greedy
from export.graph import WEIGHTS
from export.overflow import LargestActivation
from export.precision import export_precision
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.tolerance import Tolerance
from export.verify import verify
from export.verify_cases import cases
from models.generate import greedy as greedy_torch


def test_fp32_agrees_with_pytorch(tiny, engine, tiny_model):
    verdict = verify(tiny, engine, tiny_model)
    assert verdict.passed
    assert 0 < verdict.worst_logits < 1e-5
    assert 0 < verdict.worst_cache < 1e-5
    # 12 slots of a prompt leave 20 of 32 to decode; then 4 ahead of their positions, a full cache, its last 4 slots.
    assert verdict.tokens == verdict.tokens_agreed == 1 * 21 + 3 * 21 + 3 * 21 + 3 * 5 + 1 * 1 + 1 * 5
    assert verdict.ties == 0
    assert verdict.divergence is None
    assert all(case.passed and case.stopped == "" for case in verdict.cases)


def test_the_cache_of_half_the_size_is_another_graph_and_agrees(tiny, tiny_model):
    verdict = verify(tiny, OnnxRuntimeEngine(tiny, 16), tiny_model)
    assert verdict.passed
    assert verdict.capacity == 16
    assert 0 < verdict.worst_logits < 1e-5


# Cases


@pytest.mark.parametrize("capacity", [*range(1, 41), 1024])
def test_the_cases_fit_any_capacity(capacity):
    for case in cases(preset("tiny-decoder"), capacity):
        assert 1 <= min(case.lengths) <= max(case.lengths) <= case.slots
        assert case.slots + case.steps <= capacity
        first = case.prefill(256)
        assert first.input_ids.shape == first.position_ids.shape == (len(case.lengths), case.slots)
        assert first.logit_indices.shape[1] == min(case.slots, 64)
        assert (first.real_BT.sum(1) == case.lengths).all()
        rows = np.arange(len(case.lengths))
        assert (first.position_ids[rows, first.logit_indices[:, -1]] == np.array(case.lengths) - 1).all()
        assert first.seen_BR[:, -1].all()


def test_the_table_of_cases():
    found = {case.name: case for case in cases(preset("tiny-decoder"), 1024)}
    assert [(case.lengths, case.slots, case.steps) for case in found.values()] == [
        ((12,), 12, 32),
        ((12, 5, 9), 12, 32),
        ((12, 5, 9), 12, 32),
        ((12, 5, 9), 18, 4),
        ((1024,), 1024, 0),
        ((1020,), 1020, 4),
    ]
    behind, front = found["unequal prompts, padded behind"], found["unequal prompts, padded in front"]
    ahead = found["slots ahead of positions"]
    assert behind.padding_B.tolist() == [0, 0, 0]
    assert front.padding_B.tolist() == [0, 7, 3]
    assert ahead.padding_B.tolist() == [6, 13, 9]
    step = ahead.decode(2, np.array([1, 2, 3]))
    assert step.position_ids.tolist() == [[14], [7], [11]]
    assert step.write_indices.tolist() == [20, 20, 20]
    assert behind.decode(2, np.array([1, 2, 3])).write_indices.tolist() == [14, 7, 11]
    last = found["the last slot by decoding"]
    assert last.decode(3, np.array([1])).write_indices.tolist() == [1023]


def test_which_slots_are_compared():
    behind, front = cases(preset("tiny-decoder"), 16, steps=2)[1:3]
    assert behind.lengths == front.lengths == (8, 3, 6)
    marks = ["".join("x" if kept else "." for kept in row) for row in behind.compared_BC(16)]
    assert marks == ["xxxxxxxxxxxxxxxx", "xxxxx...xxxxxxxx", "xxxxxxxxxxxxxxxx"]
    marks = ["".join("x" if kept else "." for kept in row) for row in front.compared_BC(16)]
    assert marks == ["xxxxxxxxxxxxxxxx", ".....xxxxxxxxxxx", "..xxxxxxxxxxxxxx"]


def test_a_recurrent_state_is_not_padded_behind():
    keys = {"model_type": "mamba2", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8}
    keys |= {"num_heads": 4, "head_dim": 8, "n_groups": 2, "conv_kernel": 4, "expand": 2, "chunk_size": 4}
    names = [case.name for case in cases(config_from_keys(keys), 32)]
    assert "unequal prompts, padded behind" not in names
    assert "unequal prompts, padded in front" in names
    assert len(names) == 5


# Tolerance


def test_an_error_is_relative_to_the_largest_value():
    bound = Tolerance(0.1)
    assert bound.errors(np.array([1.0, -3.0, 5.0]), np.array([1.0, -4.0, 5.5])) == pytest.approx(
        [0, 1 / 5.5, 0.5 / 5.5]
    )
    assert bound.limit == 0.1
    assert bound.errors(np.zeros(2), np.zeros(2)).tolist() == [0, 0]
    assert bound.errors(np.array([1e-9, 0]), np.zeros(2)).tolist() == [np.inf, 0]


def test_atol_and_rtol_bound_each_element():
    bound = Tolerance(0.1, atol=0.5, rtol=0.25)
    assert bound.errors(np.array([1.0, -3.0, 0.0]), np.array([1.0, -4.0, 0.6])) == pytest.approx(
        [0, 1 / 1.5, 0.6 / 0.65]
    )
    assert bound.limit == 1
    assert Tolerance(0.1, rtol=0.5).errors(np.array([3.0, 0.1]), np.array([2.0, 0.0])).tolist() == [1, np.inf]
    assert Tolerance(0.1, atol=0.5).errors(np.array([3.0, 0.1]), np.array([2.0, 0.0])) == pytest.approx([2, 0.2])
    assert str(bound) == "|got - want| <= 0.5 + 0.25·|want| (atol, rtol)"


@pytest.mark.parametrize("bound", [Tolerance(0.1), Tolerance(0.1, atol=1e9, rtol=1e9)], ids=["relative", "atol"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_tolerance_is_wide_enough_for_what_is_not_finite(bound, value):
    errors = bound.errors(np.array([value, 1.0, 1.0]), np.array([1.0, value, 1.0]))
    assert errors.tolist() == [np.inf, np.inf, 0]


def test_atol_and_rtol_replace_the_precisions_tolerance(tiny, engine, tiny_model):
    strict = verify(tiny, engine, tiny_model, steps=1, rtol=1e-9)
    assert not strict.passed
    assert strict.tolerance == 1
    assert "logits differ by" in strict.problems[0]
    assert ", more than 1, in 6 of 6 cases" in strict.problems[0]
    assert verify(tiny, engine, tiny_model, steps=1, atol=1e-3).passed


CONFIGS = {
    "gpt": ("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 64}),
    "post-norm": ("tiny-decoder", {"norm_placement": "post"}),
    "window, biases, tied": (
        "tiny-decoder",
        {"sliding_window": 5, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
}


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in CONFIGS), ("window, biases, tied", "fp16")]
)
def test_every_part_agrees(name, precision, tmp_path):
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
    assert verdict.problems[-1].startswith("first diverging layer: ")


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

    verdict = verify(tiny, NotANumber(engine, None), tiny_model, steps=1)
    assert verdict.worst_logits == np.inf
    assert verdict.problems[0].startswith("logits differ by inf")


def test_an_engine_that_breaks_down_fails_every_case_and_says_why(tiny, engine, tiny_model):
    class Broken(Wrong):
        def run(self, ids, *args):
            if ids.shape[1] > 1:
                return self._engine.run(ids, *args)
            raise RuntimeError("no\nmemory")

    verdict = verify(tiny, Broken(engine, None), tiny_model)
    assert not verdict.passed
    stopped = [case.case.name for case in verdict.cases if case.stopped]
    assert len(stopped) == 5  # a full cache has no decode step
    assert verdict.problems == [f"{name}: stopped: RuntimeError: no memory" for name in stopped]


def test_logits_of_another_shape_fail(tiny, engine, tiny_model):
    class Narrow(Wrong):
        def run(self, *args):
            return self._engine.run(*args)[..., :-1]

    verdict = verify(tiny, Narrow(engine, None), tiny_model, steps=1)
    assert "stopped: logits have shape (1, 12, 255), not (1, 12, 256)" in verdict.problems[0]


# Tokens


class Swapped(Wrong):
    """An engine that gives the two likeliest tokens of the third step each other's logit."""

    def run(self, ids, positions, write, logit, cache):
        logits = self._engine.run(ids, positions, write, logit, cache).copy()
        if positions[0, -1] == 14:
            first, second = logits[0, -1].argsort()[[-1, -2]]
            logits[0, -1, [first, second]] = logits[0, -1, [second, first]]
        return logits


def test_a_token_may_differ_only_where_fp32_is_undecided(tiny, engine, tiny_model):
    wrong = verify(tiny, Swapped(engine, None), tiny_model, steps=3)
    swapped = [case for case in wrong.cases if case.wrong_tokens]
    assert len(swapped) == 4  # those whose first prompt has 12 tokens
    assert wrong.tokens_agreed == wrong.tokens - 4
    assert wrong.ties == 0
    assert any("4 of 46 greedy tokens differ; first in one prompt: step 3, row 0: " in one for one in wrong.problems)
    assert swapped[0].failed_pass == 3


def test_a_tie_is_closer_than_twice_the_tolerance(tiny, engine, tiny_model):
    gap = verify(tiny, Swapped(engine, None), tiny_model, steps=3, atol=1.0).cases[0].logits
    for atol, ties in ((0.49 * gap, 0), (0.51 * gap, 1), (1.01 * gap, 1)):
        found = verify(tiny, Swapped(engine, None), tiny_model, steps=3, atol=atol).cases[0]
        assert found.ties == ties
        assert len(found.wrong_tokens) == 1 - ties
        assert found.tokens_agreed == found.tokens - 1 == 3
        assert found.passed == (atol > gap)  # half a gap leaves the token alone, not the logits


# Overflow


def test_an_activation_that_fp16_cannot_hold_fails_though_the_engine_agrees(tiny, engine):
    """As on a CPU that computes fp16 in fp32: the graph is in fp32, the format that it is held against is not."""
    model = reference(tiny.config, "random")[0]
    half = replace(tiny, precision=export_precision("fp16"))
    assert verify(half, engine, model, steps=1).problems == []
    model.layers[1].mlp.up_proj.weight *= 2e6
    model.layers[1].mlp.down_proj.weight *= 5e-7
    verdict = verify(half, engine, model, steps=1)
    assert verdict.worst_logits < 1e-4  # what comes out is the same
    assert len(verdict.problems) == 1
    assert verdict.problems[0].startswith("an activation reaches ")
    assert verdict.largest_activation_at in ("layers.1.mlp.up_proj", "layers.1.mlp.down_proj (input)")
    assert f" in {verdict.largest_activation_at}; fp16 ends at 6.55e+04" in verdict.problems[0]


def largest(model, tokens=8) -> LargestActivation:
    with LargestActivation(model) as found:
        model(torch.arange(tokens)[None])
    return found


def test_a_product_of_two_modules_outputs_is_seen(tiny):
    model = reference(tiny.config, "random")[0]
    model.layers[0].mlp.gate_proj.weight *= 1e3
    model.layers[0].mlp.up_proj.weight *= 1e3
    found = largest(model)
    assert found.where == "layers.0.mlp.down_proj (input)"
    down = model.layers[0].mlp.down_proj
    seen = []
    down.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0].abs().max())))
    model(torch.arange(8)[None])
    assert found.value == seen[0]


def test_a_score_before_it_is_scaled_is_seen(tiny):
    model = reference(tiny.config, "random")[0]
    attention = model.layers[1].self_attn
    attention.q_proj.weight *= 1e3
    attention.k_proj.weight *= 1e3
    kernels, hooks = attention.kernels, len(attention._forward_hooks)
    found = largest(model)
    assert found.where == "layers.1.self_attn (q·k)"
    assert found.value > 1e5
    assert attention.kernels is kernels
    assert len(attention._forward_hooks) == hooks


def test_the_first_place_of_a_nan_counts_as_infinite(tiny):
    model = reference(tiny.config, "random")[0]
    model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    found = largest(model)
    assert found.value == float("inf")
    assert found.where == "layers.1.mlp.up_proj"


# Generation


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
