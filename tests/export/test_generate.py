"""Generation through an engine: the tokens of PyTorch, what is refused, and the bound pass that it is made of."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from archcalc.errors import ConfigError
from archcalc.presets import preset
from export.build import build
from export.cli import main, parser
from export.generate import generate, greedy
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from models.cli import parser as models_parser
from models.generate import generate as generate_torch
from models.generate import greedy as greedy_torch
from models.sampling import Sampler, likeliest

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [250, 3, 17]]


def continued(steps) -> list[list[int | None]]:
    return [list(row) for row in zip(*steps, strict=True)]


def test_greedy_text_is_pytorchs_row_by_row(engine, tiny_model):
    steps = continued(generate(engine, PROMPTS, 20))
    assert steps == continued(generate_torch(tiny_model, PROMPTS, 20))
    assert steps == greedy(engine, PROMPTS, 20) == greedy_torch(tiny_model, PROMPTS, 20)
    assert len({tuple(row) for row in steps}) == 3


@pytest.mark.parametrize("settings", [{"temperature": 1.5}, {"top_k": 40}, {"temperature": 0.8, "top_p": 0.95}])
def test_one_seed_draws_the_tokens_that_it_draws_from_pytorch(engine, tiny_model, settings):
    def drawn(seed):
        return continued(generate(engine, PROMPTS, 20, sampler=Sampler(**settings, seed=seed)))

    assert drawn(5) == continued(generate_torch(tiny_model, PROMPTS, 20, sampler=Sampler(**settings, seed=5)))
    assert drawn(5) != drawn(6)


def test_a_row_ends_at_any_end_token_and_the_others_go_on(engine, tiny_model):
    free = continued(generate(engine, PROMPTS, 20))
    ends = {free[0][3], free[1][6]}
    some = continued(generate(engine, PROMPTS, 20, eos=ends))
    assert some == continued(generate_torch(tiny_model, PROMPTS, 20, eos=ends))
    assert None in some[0] and some[0] != free[0]
    assert list(generate(engine, PROMPTS[:1], 20, eos={free[0][0]})) == []
    assert greedy(engine, PROMPTS, 20, free[0][3]) == greedy_torch(tiny_model, PROMPTS, 20, free[0][3])


def test_a_row_that_ended_does_not_disturb_the_others(engine):
    free = continued(generate(engine, PROMPTS, 20))
    both = continued(generate(engine, PROMPTS[:2], 20, eos={free[0][0]} - set(free[1])))
    assert both == [[None] * 20, free[1]]


def test_tokens_come_one_by_one_and_none_is_computed_for_nobody(engine, monkeypatch):
    passes = []
    session = engine.session

    class Counted:
        io_binding = staticmethod(session.io_binding)

        @staticmethod
        def run_with_iobinding(binding):
            passes.append(binding)
            session.run_with_iobinding(binding)

    monkeypatch.setattr(engine, "session", Counted)
    steps = generate(engine, PROMPTS, 3)
    assert not passes
    for count in (1, 2, 3):
        next(steps)
        assert len(passes) == count
    assert list(steps) == []
    assert len(passes) == 3
    assert passes[1] is passes[2]  # bound once


def test_what_cannot_be_continued_is_refused_before_anything_runs(engine, monkeypatch):
    assert len(continued(generate(engine, [[1] * 13], 20))[0]) == 20  # the last slot is used
    monkeypatch.setattr(engine, "session", None)
    for prompts, count, told in [
        ([], 3, "every prompt needs a token"),
        ([[1], []], 3, "every prompt needs a token"),
        ([[1], [256]], 3, "id 256, but vocab_size=256"),
        ([[-1]], 3, "id -1"),
        ([[1], [1] * 14], 20, r"context=33: the cache holds capacity=32"),
    ]:
        with pytest.raises(ConfigError, match=told):
            generate(engine, prompts, count)


def test_the_sampler_has_one_thread_and_the_rest_has_its_own_again(engine):
    threads, seen = torch.get_num_threads(), []

    def sampler(logits_BV):
        seen.append(torch.get_num_threads())
        return likeliest(logits_BV)

    torch.set_num_threads(3)
    try:
        list(generate(engine, PROMPTS, 2, sampler=sampler))
        assert (seen, torch.get_num_threads()) == ([1, 1], 3)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_bound_pass_is_run_again_and_again(precision, tmp_path):
    config = preset("tiny-decoder")
    made = build(config, tmp_path / "build", precision, (16,), *reference(config, "random"))
    engine = OnnxRuntimeEngine(made, 16)
    mine, other = engine.new_cache(2), engine.new_cache(2)
    bound = engine.bind(2, 1, 1, mine)
    last = np.zeros((2, 1), np.int64)
    for position, ids in enumerate(([[7], [8]], [[9], [1]], [[7], [8]])):
        starts = np.array([position, position + 3])
        inputs = (np.array(ids), starts[:, None], starts, last)
        logits = bound(*inputs)
        assert logits.shape == (2, 1, 256) and logits.dtype == np.float32 and logits.any()
        np.testing.assert_array_equal(logits, engine.run(*inputs, other))
    for a, b in zip(engine.cache_arrays(mine), engine.cache_arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say how much memory is used")
def test_a_new_cache_is_memory_that_was_written(engine):
    """Pages that nobody wrote are one page, and a step that reads it would be timed too fast."""
    pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])  # noqa: E731
    before, batch = pages(), 1024
    cache = engine.new_cache(batch)
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") > 0.9 * engine.cache_bytes(cache) > 10**7


def test_logits_are_copied_only_where_they_are_converted(engine):
    bound = engine.bind(1, 1, 1, engine.new_cache(1))
    zero = np.zeros((1, 1), np.int64)
    before = bound(zero, zero, zero[0], zero)
    kept = before.copy()
    after = bound(zero + 5, zero + 1, zero[0] + 1, zero)
    assert np.shares_memory(before, after)
    assert not np.array_equal(kept, after)
    first = engine.run(zero, zero, zero[0], zero, engine.new_cache(1))
    engine.run(zero + 5, zero, zero[0], zero, engine.new_cache(1))
    np.testing.assert_array_equal(first, kept)  # run's are the caller's


def test_a_bound_pass_refuses_what_would_not_fit(engine):
    bound = engine.bind(1, 1, 1, engine.new_cache(1))
    zero = np.zeros((1, 1), np.int64)
    for slot in (32, -1):
        with pytest.raises(ConfigError, match="the cache holds capacity=32"):
            bound(zero, zero, zero[0] + slot, zero)


# The command


def test_its_options_are_those_of_the_models_command():
    def options(top) -> dict:
        (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        made = commands.choices["generate"]._actions
        return {action.dest: (action.option_strings, action.default, action.type) for action in made}

    ours, theirs = options(parser()), options(models_parser())
    for name in ("prompt", "raw", "system", "max_tokens", "temperature", "top_k", "top_p", "seed"):
        assert ours[name][:2] == theirs[name][:2]
    assert theirs.keys() - ours.keys() == {"model", "config", "cache"}


@pytest.fixture
def spoken(tiny, monkeypatch):
    """The tiny build with a tokenizer whose text is the token ids."""

    class Numbers:
        eos_ids = ()
        decode = staticmethod(lambda ids: "".join(f" {i}" for i in ids))
        raw = staticmethod(lambda text: [*map(int, text.split())])
        chat = staticmethod(lambda text, system: [1, *map(int, text.split())])

    monkeypatch.setattr("export.cli._tokenizer", lambda *_: Numbers)
    return ["generate", "--build", str(tiny.folder), "--prompt", "7 8 9"]


def test_the_command_writes_what_is_generated(spoken, engine, capsys):
    for options, prompt, sampler in (
        ([], [1, 7, 8, 9], likeliest),
        (["--raw"], [7, 8, 9], likeliest),
        (["--raw", "--top-p", "0.9", "--seed", "3"], [7, 8, 9], Sampler(1.0, top_p=0.9, seed=3)),
    ):
        assert main([*spoken, *options, "--max-tokens", "6"]) == 0
        (row,) = continued(generate(engine, [prompt], 6, sampler=sampler))
        told = capsys.readouterr()
        assert told.out.split() == [*map(str, row)]
        assert told.err == ""  # no terminal, no rate


def test_without_a_number_it_fills_the_cache_and_with_too_large_a_one_it_says_so(spoken, capsys):
    assert main([*spoken, "--raw"]) == 0
    assert len(capsys.readouterr().out.split()) == 32 - 3
    for options, told in ((["--max-tokens", "30"], "context=34"), (["--top-p", "2"], "top_p=2.0: must be")):
        assert main([*spoken, *options]) == 2
        assert told in capsys.readouterr().err


def test_the_text_comes_as_it_is_made_and_an_interrupt_ends_it(spoken, capsys, monkeypatch):
    def interrupted(*_, **__):
        yield [5]
        assert capsys.readouterr().out == " 5"
        raise KeyboardInterrupt

    monkeypatch.setattr("export.generate.generate", interrupted)
    assert main(spoken) == 130
    assert capsys.readouterr() == ("\n", "")


# The sampler is as fast as it is by looking at few tokens only; this is what it is to draw.


def plainly(sampler: Sampler, logits_BV: torch.Tensor) -> torch.Tensor:
    """Probabilities of the definition: sort everything, cut, sum up."""
    logits_BV = logits_BV.double() / sampler.temperature
    if sampler.top_k is not None:
        values_Bk, ids_Bk = logits_BV.topk(min(sampler.top_k, logits_BV.shape[-1]))
        logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(-1, ids_Bk, values_Bk)
    if sampler.top_p is not None:
        sorted_BV, ids_BV = logits_BV.softmax(-1).sort(descending=True, stable=True)
        kept_BV = (sorted_BV.cumsum(-1) - sorted_BV < sampler.top_p).gather(-1, ids_BV.argsort())
        logits_BV = logits_BV.masked_fill(~kept_BV, -torch.inf)
    return logits_BV.softmax(-1)


def drawn(probabilities_BV: torch.Tensor, generator: torch.Generator, settings: dict) -> torch.Tensor:
    """Where a uniform number falls among probabilities laid end to end: by id, or heaviest first where top_p sorts."""
    order_BV = torch.arange(probabilities_BV.shape[-1]).expand_as(probabilities_BV)
    if settings.get("top_p", 1) < 1:
        order_BV = probabilities_BV.argsort(descending=True, stable=True)
    ends_BV = probabilities_BV.gather(-1, order_BV).cumsum(-1)
    uniform_B1 = torch.rand(len(ends_BV), 1, dtype=torch.float64, generator=generator)
    return order_BV.gather(-1, torch.searchsorted(ends_BV, uniform_B1, right=True).clamp(max=len(order_BV[0]) - 1))[
        :, 0
    ]


SETTINGS = (
    {},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 2.0, "top_p": 0.5},
    {"top_p": 1e-9},
    {"top_p": 0.9999},
    {"top_k": 50},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [2, 61, 49_152])
def test_what_is_drawn_is_what_the_definition_draws(settings, size):
    generator, logits = torch.Generator().manual_seed(3), torch.Generator().manual_seed(1)
    sampler = Sampler(**settings, seed=3)
    for spread in (0.1, 1, 4, 20):
        logits_BV = spread * torch.randn(3, size, generator=logits)
        expected_BV = plainly(sampler, logits_BV)
        found_BV = sampler.probabilities(logits_BV)
        torch.testing.assert_close(found_BV, expected_BV, rtol=1e-12, atol=0)
        assert torch.equal(found_BV > 0, expected_BV > 0)
        assert torch.equal(sampler(logits_BV), drawn(expected_BV, generator, settings))


def test_among_equal_tokens_the_nucleus_has_the_fewest_and_the_first():
    for size, p, fewest in ((8, 0.5, 4), (8, 0.51, 5), (1000, 0.95, 950), (1000, 0.9501, 951)):
        kept = Sampler(top_p=p).probabilities(torch.zeros(2, size)).numpy() > 0
        assert [row.nonzero()[0].tolist() for row in kept] == [list(range(fewest))] * 2
