"""Sums over the op list: what must hold between models and between passes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archcalc.blocks import groups
from archcalc.config import Attention, Block, FeedForward, MixtureOfExperts, ModelConfig, Norm, Stack
from archcalc.cost import (
    Pass,
    active_parameters,
    bound,
    cache_elements,
    check_request,
    costs,
    parameters,
    passes,
    total,
)
from archcalc.errors import ConfigError
from archcalc.ops import Cost
from archcalc.presets import names, preset

NORM, SWIGLU = Norm("rmsnorm", 1e-5), FeedForward(96, "silu", gated=True)


def model(*windows, heads=4, kv_heads=2, mlp=SWIGLU, tied=False, **other) -> ModelConfig:
    """A layer a window (None: it sees everything)."""
    blocks = {w: Block(Attention(heads, kv_heads, 16, sliding_window=w), mlp, NORM) for w in windows or (None,)}
    layers = tuple(blocks[w] for w in windows or (None,))
    return ModelConfig(100, 64, 4096, Stack(layers, NORM), tie_word_embeddings=tied, **other)


def step(config, B=1, T=1, S=1, R=None, X=1) -> Pass:
    return Pass("step", {"B": B, "T": T, "S": S, "R": T if R is None else R, "X": X}, bound(config)[1])


def flops(config, dense=False, **dims) -> int:
    return total(step(config, **dims), dense).flops


def test_one_model_by_hand():
    config = model()
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64
    assert parameters(config) == attention + 3 * 64 * 96 + 2 * 64 + 64 + 2 * 100 * 64
    linear = attention + 3 * 64 * 96
    assert flops(config, B=2, T=3, S=5) == 2 * 2 * 3 * (linear + 64 * 100) + 2 * 2 * 2 * 64 * (3 + 4 + 5)
    assert flops(config, dense=True, B=2, T=3, S=5) == 2 * 2 * 3 * (linear + 64 * 100) + 2 * 2 * 2 * 64 * 15
    assert flops(config, B=2, T=3, S=5, R=1) == 2 * 2 * 3 * linear + 2 * 2 * 64 * 100 + 2 * 2 * 2 * 64 * 12
    assert cache_elements(bound(config)[1], 3, 7)[:2] == (2 * 3 * 7 * 32, 0)


@given(T=st.integers(1, 40), window=st.none() | st.integers(1, 50), batch=st.integers(1, 3))
@settings(max_examples=60)
def test_a_prefill_is_the_sum_of_its_decodes(T, window, batch):
    config = model(window, None)
    whole = flops(config, B=batch, T=T, S=T)
    assert whole == sum(flops(config, B=batch, T=1, S=s) for s in range(1, T + 1))


@given(T=st.integers(2, 60), data=st.data(), window=st.none() | st.integers(1, 50))
@settings(max_examples=60)
def test_a_prefill_in_two_chunks_costs_the_same(T, data, window):
    first = data.draw(st.integers(1, T - 1))
    config = model(window)
    assert flops(config, T=T, S=T) == flops(config, T=first, S=first) + flops(config, T=T - first, S=T)


@pytest.mark.parametrize("name", names())
def test_everything_but_weights_is_linear_in_the_batch(name):
    config = preset(name)
    for one, many in zip(passes(config, 1, 64, 64), passes(config, 5, 64, 64), strict=True):
        single, five = total(one), total(many)
        for column in ("flops", "activations", "cache_read", "cache_written"):
            assert getattr(five, column) == 5 * getattr(single, column), column
        assert five.weights_read < 5 * single.weights_read
        assert five.params == single.params


@pytest.mark.parametrize("name", names())
def test_lines_sum_to_the_total(name):
    for run in passes(preset(name), 2, 48, 60):
        for dense in (False, True):
            by_line = list(zip(run.bound.lines, costs(run, dense), strict=True))
            for column in Cost._fields:
                summed = sum(line.count * getattr(cost, column) for line, cost in by_line)
                assert summed == getattr(total(run, dense), column), column


def test_as_many_key_heads_as_query_heads_is_multi_head_attention():
    full, grouped, single = (model(kv_heads=k) for k in (4, 2, 1))
    q_and_o = 2 * 64 * 64
    by_name = {line.name: line.params for line in bound(full)[1].lines}
    assert by_name["layers.*.self_attn.k_proj"] == by_name["layers.*.self_attn.q_proj"] == 64 * 64
    for config, k in ((full, 4), (grouped, 2), (single, 1)):
        assert parameters(config) == parameters(full) - q_and_o + 2 * 64 * 16 * k
        assert cache_elements(bound(config)[1], 1, 10)[0] == 2 * 10 * 16 * k
    # fewer key heads make no product of attention itself smaller
    attention = [{c.flops for line, c in zip(r.bound.lines, costs(r), strict=True) if line.op.mask}
                 for r in (step(c, T=8, S=8) for c in (full, grouped, single))]  # fmt: skip
    assert attention[0] == attention[1] == attention[2]


@pytest.mark.parametrize("window", [64, 65, 4096])
def test_a_window_that_is_never_full_changes_nothing(window):
    full, windowed = model(), model(window)
    for dims in ({"T": 64, "S": 64}, {"T": 1, "S": 64}, {"T": 5, "S": 60}):
        assert total(step(full, **dims)) == total(step(windowed, **dims))
    assert cache_elements(bound(full)[1], 1, 64) == cache_elements(bound(windowed)[1], 1, 64)
    assert flops(model(63), T=64, S=64) < flops(full, T=64, S=64)


def test_a_window_bounds_the_cache_layer_by_layer():
    config = model(8, None, 8)
    assert cache_elements(bound(config)[1], 1, 100)[0] == 2 * 32 * (8 + 100 + 8)
    assert cache_elements(bound(config)[1], 1, 5)[0] == 2 * 32 * 15
    labels = {group.block: group.count for group in groups(config) if group.block}
    assert labels == {"block 1": 2, "block 2": 1}


def test_equal_blocks_are_one_kind_whether_or_not_they_are_one_object():
    block = model().decoder.layers[0]
    copies = replace(model(), decoder=Stack((block, replace(block), replace(block)), NORM))
    one = replace(model(), decoder=Stack((block,) * 3, NORM))
    assert [g.count for g in groups(copies)] == [g.count for g in groups(one)]
    assert parameters(copies) == parameters(one)


def test_one_expert_is_the_dense_model_and_a_router():
    dense, single = model(), model(mlp=MixtureOfExperts(SWIGLU, 1, 1))
    assert parameters(single) == parameters(dense) + 64
    assert active_parameters(single) == parameters(single)
    assert flops(single, B=2, T=8, S=8) == flops(dense, B=2, T=8, S=8) + 2 * 2 * 8 * 64


def test_active_parameters_leave_out_the_other_experts():
    config = model(None, None, mlp=MixtureOfExperts(SWIGLU, 8, 2))
    assert active_parameters(config) == parameters(config) - 2 * (8 - 2) * 3 * 64 * 96
    assert flops(config) == flops(model(None, None, mlp=MixtureOfExperts(SWIGLU, 4, 2))) + 2 * 2 * 64 * 4


def test_a_pass_reads_the_experts_that_its_tokens_reach_at_most():
    config = model(mlp=MixtureOfExperts(SWIGLU, 8, 2))
    one, matrix = total(step(config)).weights_read, 3 * 64 * 96
    assert total(step(config, B=3)).weights_read == one + 2 * 64 + (6 - 2) * matrix  # and two more rows of embedding
    assert total(step(config, B=50)).weights_read == one + 49 * 64 + (8 - 2) * matrix


TIED = [name for name in names() if preset(name).tie_word_embeddings and not preset(name).encoder]


@pytest.mark.parametrize("name", [*TIED, "transformer-base", "tiny-encoder-decoder"])
def test_a_tied_model_is_the_untied_one_without_the_head(name):
    tied, untied = preset(name), preset(name, {"tie_word_embeddings": False})
    assert parameters(tied) == parameters(untied) - tied.vocab_size * tied.hidden_size
    dims = {"B": 2, "T": 3, "S": 7, "X": 5}
    assert total(step(tied, **dims))._replace(params=0) == total(step(untied, **dims))._replace(params=0)


def test_an_encoder_decoder_is_encoded_once_and_decoded_a_token_at_a_time():
    config = preset("tiny-encoder-decoder")
    encode, decode = passes(config, 2, 10, 6)
    D, F, V = 64, 128, 256
    linear, attention = 4 * D * D + 2 * D * F, 2 * D * 10 * 10
    cross_keys_values = 2 * 2 * D * D  # of both decoder layers
    assert total(encode).flops == 2 * 2 * (10 * (2 * linear + cross_keys_values) + 2 * attention)
    of_a_layer = linear + 2 * D * D + 2 * D * 6 + 2 * D * 10  # self, cross, and both kinds of attention
    assert total(decode).flops == 2 * 2 * (2 * of_a_layer + D * V)
    assert total(decode).cache_written == 2 * 2 * 2 * D  # no cross keys are made again
    assert cache_elements(bound(config)[1], 2, 6, 10)[:2] == (2 * 2 * 2 * 6 * D, 2 * 2 * 2 * 10 * D)


def test_separate_embeddings_of_two_stacks_are_both_owned():
    config = preset("tiny-encoder-decoder", {"share_encoder_decoder_embeddings": False})
    assert parameters(config) == parameters(preset("tiny-encoder-decoder")) + 256 * 64
    names_of = [line.name for part in bound(config) for line in part.lines if "embed_tokens" in line.name]
    assert names_of == ["encoder.embed_tokens", "decoder.embed_tokens"]


def test_last_logits_only_change_the_head_of_the_prefill():
    config = preset("tiny-decoder")
    every, last = (passes(config, 2, 16, 16, flag) for flag in (False, True))
    assert total(every[0]).flops - total(last[0]).flops == 2 * 2 * 15 * 64 * 256
    assert total(every[1]) == total(last[1])


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, 2**41), (True, 1, 1), (1, 1.0, 1)])
def test_a_size_that_is_no_request_is_refused(sizes):
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        check_request(preset("llama3-8b"), *sizes)


def test_learned_positions_limit_a_request():
    check_request(preset("gpt2"), 4096, 1024, 1024)
    for sizes in ((1, 1025, 1), (1, 1, 1025)):
        with pytest.raises(ConfigError, match="max_position_embeddings=1024"):
            check_request(preset("gpt2"), *sizes)
    check_request(preset("llama3-8b"), 1, 100_000, 100_000)  # rotary positions have no table


def test_a_bound_config_is_kept_with_it():
    config = preset("tiny-decoder")
    assert bound(config) is bound(config)
    assert bound(config)[1].lines == bound(preset("tiny-decoder"))[1].lines
