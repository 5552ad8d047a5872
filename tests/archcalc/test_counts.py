"""Parameters as model cards count them, and the experts that a batch touches."""

import random
from fractions import Fraction

import pytest

from archcalc.config import Attention, Block, FeedForward, Head, MixtureOfExperts, ModelConfig, Norm, Stack
from archcalc.cost import buffers, parameters
from archcalc.counts import CONVENTIONS, expected_experts, expert_rows, parameter_counts
from archcalc.precision import precision
from archcalc.presets import names, preset

NORM = Norm("rmsnorm", 1e-6)


@pytest.mark.parametrize("name", names())
def test_conventions_are_ordered(name):
    config = preset(name)
    found = parameter_counts(config)
    assert found.keys() == CONVENTIONS.keys()
    total = {name: count["total"] for name, count in found.items()}
    assert total["all"] == parameters(config)
    assert total["all and buffers"] == total["all"] + buffers(config)
    assert total["all"] >= total["without input embedding"] >= total["without embedding and head"]
    assert total["without embedding and head"] >= total["matrices of blocks"]
    assert all(count["active"] <= count["total"] for count in found.values())


def totals(config) -> dict[str, int]:
    return {name: count["total"] for name, count in parameter_counts(config).items()}


def test_gpt2_in_each_convention():
    assert totals(preset("gpt2")) == {
        "all": 124_439_808,
        "all and buffers": 124_439_808,
        "without input embedding": 124_439_808,  # it is the head
        "without embedding and head": 124_439_808 - (50257 + 1024) * 768,
        "matrices of blocks": 12 * 12 * 768**2,
        "matrices of blocks and head": 12 * 12 * 768**2 + 50257 * 768,
    }


def test_llama_in_each_convention():
    table, norms = 128_256 * 4096, 65 * 4096
    assert totals(preset("llama3-8b")) == {
        "all": 8_030_261_248,
        "all and buffers": 8_030_261_248,
        "without input embedding": 8_030_261_248 - table,
        "without embedding and head": 8_030_261_248 - 2 * table,
        "matrices of blocks": 8_030_261_248 - 2 * table - norms,
        "matrices of blocks and head": 8_030_261_248 - table - norms,
    }


def test_a_tie_without_a_head_ties_nothing():
    block = Block(Attention(4, 4, 16, causal=False), FeedForward(64, "gelu"), NORM)
    encoder = Stack((block,), NORM)
    for kind, table in (("none", 100 * 64), ("lm", 0)):
        config = ModelConfig(100, 64, 100, None, encoder, tie_word_embeddings=True, head=Head(kind))
        found = totals(config)
        assert found["all"] - found["without input embedding"] == table


def test_buffers_of_a_router():
    expert = FeedForward(32, "silu", gated=True, bias=True)
    moe = MixtureOfExperts(expert, 8, 2, router_bias=True, correction_bias=True)
    config = ModelConfig(100, 64, 100, Stack((Block(Attention(4, 4, 16), moe, NORM),) * 3, NORM))
    found = parameter_counts(config)
    assert found["all and buffers"]["total"] - found["all"]["total"] == 3 * 8
    assert found["all and buffers"]["active"] - found["all"]["active"] == 3 * 8
    assert found["matrices of blocks"]["total"] == 3 * (4 * 64 * 64 + 64 * 8 + 8 * 3 * 64 * 32)
    assert found["matrices of blocks"]["active"] == 3 * (4 * 64 * 64 + 64 * 8 + 2 * 3 * 64 * 32)


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(8, 2, 1), (8, 2, 5), (4, 1, 3), (3, 3, 2)])
def test_expected_experts_of_every_choice(experts, chosen, tokens):
    """Against a simulation, and exactly for one token, for no choice and in the limit."""
    found = expected_experts(experts, chosen, tokens)
    drawn = random.Random(0)
    runs = 20_000
    seen = sum(len(set().union(*(drawn.sample(range(experts), chosen) for _ in range(tokens)))) for _ in range(runs))
    assert float(found) == pytest.approx(seen / runs, rel=0.01)
    assert expected_experts(experts, chosen, 1) == chosen
    assert chosen <= found <= min(experts, tokens * chosen)
    assert isinstance(found, Fraction)


def test_rows_of_experts():
    rows = expert_rows(preset("mixtral-8x7b"), precision("bf16"))
    assert [row["batch"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert [row["most"] for row in rows] == [2, 4, 8, 8, 8, 8, 8, 8, 8]
    expert = 3 * 4096 * 14336
    for row in rows:
        assert row["bytes_most"] == 32 * row["most"] * expert * 2
        assert row["expected"] == pytest.approx(8 * (1 - (6 / 8) ** row["batch"]), rel=1e-12)
        assert row["bytes_expected"] == pytest.approx(32 * row["expected"] * expert * 2, rel=1e-12)
    assert expert_rows(preset("gpt2"), precision("bf16")) == []
