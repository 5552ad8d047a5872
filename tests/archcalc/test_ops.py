"""The contraction rule: each number here is worked out by hand."""

import random

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from archcalc.config import Attention, FeedForward, MixtureOfExperts, Norm
from archcalc.dims import Algebra, Mask, kept, pairs, span
from archcalc.ops import Cost, Op, Sizes, Tensor, activation, cache, params, size, weight
from archcalc.parts.attention import cross_ops, key_value_ops
from archcalc.parts.norm import norm_op

SIZES = {"B": 2, "T": 3, "S": 5, "D": 6, "N": 4, "K": 2, "G": 2, "H": 8, "F": 10, "E": 7, "A": 2, "V": 100, "M": 50}


def evaluate(op: Op, sizes=SIZES, dense=False) -> Cost:
    """The cost of one op, term by term."""
    columns = [0] * len(Cost._fields)
    bound = Sizes({letter: value for letter, value in sizes.items() if letter not in "BTSXR"})
    for column, scale, fixed, monomial in op.bind(bound):
        value = monomial.value(sizes, dense, Algebra(min, max, lambda even: even // 2))
        columns[column] += scale * bound[fixed] * value
    return Cost(*columns)


def test_linear_with_bias():
    op = Op("q_proj", (activation("BTD"), weight("DNH"), weight("NH")), activation("BTNH"))
    assert op.weights == (weight("DNH"), weight("NH"))
    assert set(op.multiplied) == set("BTDNH")
    assert evaluate(op) == Cost(
        params=6 * 4 * 8 + 4 * 8,
        flops=2 * 2 * 3 * 6 * 4 * 8,  # the bias is an addition, not a product
        weights_read=6 * 4 * 8 + 4 * 8,
        activations=2 * 3 * 6 + 2 * 3 * 4 * 8,
    )


def test_keys_are_written_to_the_cache():
    op = Op("k_proj", (activation("BTD"), weight("DKH")), Tensor("cache", "BTKH"))
    cost = evaluate(op)
    assert (cost.activations, cost.cache_read, cost.cache_written) == (2 * 3 * 6, 0, 2 * 3 * 2 * 8)


def test_axes_are_distinct_by_name_and_never_by_size():
    """T equal to S and D equal to N·H must not lose a factor."""
    square = SIZES | {"T": 5, "S": 5, "D": 32}
    scores = Op("scores", (activation("BTKGH"), cache("BSKH")), Tensor("chip", "BKGTS"), mask=Mask(False, None))
    assert evaluate(scores, square).flops == 2 * 2 * 5 * 5 * 4 * 8
    q_proj = Op("q_proj", (activation("BTD"), weight("DNH")), activation("BTNH"))
    assert evaluate(q_proj, square).flops == 2 * 2 * 5 * 32 * 32
    assert evaluate(q_proj, square).params == 32 * 32
    all_one_size = dict.fromkeys(SIZES, 3)
    assert evaluate(scores, all_one_size).flops == 2 * 3**6  # B T S K G H
    assert evaluate(q_proj, all_one_size).flops == 2 * 3**5


def test_scores_stay_on_the_chip():
    scores = Op("scores", (activation("BTKGH"), cache("BSKH")), Tensor("chip", "BKGTS"), mask=Mask(True, None))
    cost = evaluate(scores)
    assert cost.activations == 2 * 3 * 4 * 8
    assert cost.cache_read == 2 * 5 * 2 * 8
    assert cost.flops == 2 * 2 * 4 * 8 * (3 + 4 + 5)  # the 3 queries see 3, 4 and 5 keys
    assert evaluate(scores, dense=True).flops == 2 * 2 * 4 * 8 * 3 * 5


def test_a_lookup_gathers_rows_and_multiplies_nothing():
    op = Op("embed_tokens", (weight("VD"),), activation("BTD"), gather="V", indices="BT")
    assert evaluate(op) == Cost(params=600, flops=0, weights_read=2 * 3 * 6, activations=2 * 3 * 6)
    few_words = evaluate(op, SIZES | {"V": 4})
    assert few_words.weights_read == 4 * 6  # six indices reach at most four rows
    assert few_words.params == 4 * 6


def test_a_tied_matrix_is_read_but_not_owned():
    op = Op("lm_head", (activation("BTD"), Tensor("tied", "DV")), activation("BTV"))
    cost = evaluate(op)
    assert (cost.params, cost.weights_read, cost.flops) == (0, 600, 2 * 2 * 3 * 6 * 100)


def test_an_expert_counts_for_parameters_and_a_token_for_its_own_experts_only():
    up = Op("up", (activation("BTD"), weight("EDF")), activation("BTAF"), gather="E", indices="BTA")
    cost = evaluate(up)
    assert cost.params == 7 * 6 * 10
    assert cost.flops == 2 * 2 * 3 * 2 * 6 * 10  # B T A D F: no E
    assert cost.weights_read == 7 * 60  # 12 choices reach all 7
    assert evaluate(up, SIZES | {"B": 1, "T": 1}).weights_read == 2 * 60


@pytest.mark.parametrize(("kind", "owned"), [("rmsnorm", 6), ("layernorm", 12)])
def test_a_norm_owns_a_row_or_two_and_multiplies_no_matrix(kind, owned):
    cost = evaluate(norm_op(Norm(kind, 1e-5), "norm"))
    assert cost == Cost(params=owned, flops=0, weights_read=owned, activations=2 * 2 * 3 * 6)


def test_grouped_query_attention_by_hand():
    ops = Attention(4, 2, 8).ops("self_attn")
    owned = {op.name.split(".")[1]: params(op, SIZES) for op in ops}
    assert owned == {"q_proj": 192, "scores": 0, "context": 0, "o_proj": 192, "k_proj": 96, "v_proj": 96}
    flops = {op.name.split(".")[1]: evaluate(op).flops for op in ops}
    seen = 3 + 4 + 5
    assert flops["scores"] == flops["context"] == 2 * 2 * 4 * 8 * seen  # query heads, not key heads
    assert flops["k_proj"] == flops["v_proj"] == 2 * 2 * 3 * 6 * 2 * 8
    assert flops["q_proj"] == flops["o_proj"] == 2 * 2 * 3 * 6 * 4 * 8


def test_each_bias_belongs_to_its_own_projection():
    for letter, owned in (("q", 32), ("k", 16), ("v", 16), ("o", 6)):
        both = [Attention(4, 2, 8, **bias).ops("self_attn") for bias in ({}, {f"{letter}_bias": True})]
        plain, biased = ({op.name: params(op, SIZES) for op in found} for found in both)
        more = {name: biased[name] - plain[name] for name in plain if biased[name] != plain[name]}
        assert more == {f"self_attn.{letter}_proj": owned}


def test_cross_attention_reads_the_source_and_has_no_mask():
    cross = Attention(4, 2, 8, causal=False)
    queries, keys_values = cross_ops(cross, "cross_attn"), key_value_ops(cross, "cross_attn")
    sizes = SIZES | {"X": 11}
    scores = evaluate(queries[1], sizes)
    assert (scores.flops, scores.cache_read) == (2 * 2 * 4 * 8 * 3 * 11, 2 * 11 * 2 * 8)
    assert [op.name for op in keys_values] == ["cross_attn.k_proj", "cross_attn.v_proj"]


@pytest.mark.parametrize(("gated", "matrices"), [(False, 2), (True, 3)])
def test_feed_forward_by_hand(gated, matrices):
    ops = FeedForward(10, "silu", gated).ops("mlp")
    assert sum(params(op, SIZES) for op in ops) == matrices * 60
    assert sum(evaluate(op).flops for op in ops) == matrices * 2 * 2 * 3 * 60
    assert ops[-1].name == "mlp.down_proj"
    biased = FeedForward(10, "silu", gated, bias=True).ops("mlp")
    assert sum(params(op, SIZES) for op in biased) == matrices * 60 + (matrices - 1) * 10 + 6


def test_mixture_of_experts_by_hand():
    ops = MixtureOfExperts(FeedForward(10, "silu", True), 7, 2).ops("mlp")
    assert [params(op, SIZES) for op in ops] == [42, 420, 420, 420]
    assert [evaluate(op).flops for op in ops] == [2 * 6 * 42, *[2 * 6 * 2 * 60] * 3]


def test_size_of_no_axes_is_one():
    assert size("", SIZES) == 1
    assert Sizes(SIZES)["DNH+NH"] == 6 * 32 + 32


def test_binding_puts_the_window_of_the_model_in():
    scores = next(op for op in Attention(4, 2, 8, sliding_window=2).ops("self_attn") if op.name.endswith("scores"))
    cost = evaluate(scores, SIZES | {"W": 2})
    assert cost.flops == 2 * 2 * 4 * 8 * (2 + 2 + 2)
    assert cost.cache_read == 2 * 2 * 8 * 4  # the last 2 keys, and the 2 that the first query still sees
    assert evaluate(scores, SIZES | {"W": 4}).flops == 2 * 2 * 4 * 8 * (3 + 4 + 4)


# pairs and span against a mask that is drawn

tokens = st.integers(1, 40)


def drawn(T: int, S: int, mask: Mask) -> list[list[bool]]:
    """Row by row, which of S keys each of the last T positions sees."""

    def sees(query: int, key: int) -> bool:
        if not mask.causal:
            return mask.limit is None or abs(query - key) <= mask.limit
        reach = query // mask.limit * mask.limit if mask.kind == "chunk" else query - (mask.limit or S) + 1
        return reach <= key <= query

    return [[sees(query, key) for key in range(S)] for query in range(S - T, S)]


limits = st.none() | st.integers(1, 80)


@given(T=tokens, past=st.integers(0, 60), limit=limits, kind=st.sampled_from(["window", "chunk"]))
def test_pairs_and_span_equal_a_drawn_mask(T, past, limit, kind):
    dims, mask = {"T": T, "S": T + past}, Mask(True, limit, kind if limit else "window")
    rows = drawn(T, T + past, mask)
    assert pairs(dims, mask) == sum(map(sum, rows))
    assert span(dims, mask) == sum(map(any, zip(*rows, strict=True)))


@given(T=tokens, limit=limits)
def test_an_encoder_sees_both_sides(T, limit):
    rows = drawn(T, T, Mask(False, limit))
    assert pairs({"T": T, "S": T}, Mask(False, limit)) == sum(map(sum, rows))


@given(T=tokens, past=st.integers(0, 60), limit=st.integers(1, 80))
def test_chosen_keys_are_as_many_as_a_window_has(T, past, limit):
    dims = {"T": T, "S": T + past}
    assert pairs(dims, Mask(True, limit, "topk")) == sum(min(S, limit) for S in range(past + 1, past + T + 1))
    assert span(dims, Mask(True, limit, "topk")) == min(T + past, limit * T)
    assert kept(99, Mask(True, limit, "topk")) == 99  # nobody knows what is chosen next


@given(S=st.integers(1, 90), limit=st.integers(1, 40), kind=st.sampled_from(["window", "chunk"]))
def test_what_a_mask_forgets_is_never_seen_again(S, limit, kind):
    rows = drawn(1, S, Mask(True, limit, kind))
    assert sum(rows[0]) <= kept(S, Mask(True, limit, kind)) <= limit


@pytest.mark.parametrize("kind", ["window", "chunk", "topk"])
def test_pairs_in_all_three_algebras(kind):
    T, S, W = sympy.symbols("T S W", integer=True, positive=True)
    symbols = Algebra(sympy.Min, sympy.Max, lambda even: even / 2)
    formula = pairs({"T": T, "S": S}, Mask(True, W, kind), symbols)
    arrays = Algebra(np.minimum, np.maximum, lambda even: even // 2)
    random.seed(0)
    for _ in range(20):
        t, past, w = random.randint(1, 30), random.randint(0, 30), random.randint(1, 40)
        expected = pairs({"T": t, "S": t + past}, Mask(True, w, kind))
        assert formula.subs({T: t, S: t + past, W: w}) == expected
        assert pairs({"T": np.array([t]), "S": np.array([t + past])}, Mask(True, w, kind), arrays)[0] == expected
