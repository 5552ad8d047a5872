"""What must hold of every model, whatever its sizes: random configs of every mixer, from parts and from keys."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archcalc.config import (
    Attention,
    Block,
    BlockIndexer,
    BlockSparseAttention,
    CompressedAttention,
    FeedForward,
    GatedDeltaNet,
    GatedLinearRecurrence,
    Indexer,
    KimiDelta,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    ModelConfig,
    Norm,
    ShortConvolution,
    Stack,
    expanded,
)
from archcalc.cost import Pass, active_parameters, bound, cache_elements, costs, parameters, total
from archcalc.hf import config_from_keys
from archcalc.ops import Cost
from archcalc.sweep import ARRAYS
from archcalc.symbolic import derive

NORM, SWIGLU = Norm("rmsnorm", 1e-5), FeedForward(5, "silu", gated=True)
few, small = st.integers(1, 3), st.integers(1, 6)
examples = settings(max_examples=12, deadline=None)


@st.composite
def attention(draw, **parts) -> Attention:
    kv_heads = draw(few)
    chosen = {
        "q_bias": st.booleans(), "o_bias": st.booleans(), "v_head_dim": st.none() | small, "sinks": st.booleans(),
        "qk_norm": st.none() | st.just(NORM), "qk_norm_over": st.sampled_from(("head", "heads", "all")),
        "output_gate": st.sampled_from((None, "element", "head")),
    }  # fmt: skip
    parts = {name: draw(strategy) for name, strategy in (chosen | parts).items()}
    return Attention(kv_heads * draw(few), kv_heads, 2 * draw(few), **parts)


@st.composite
def block_sparse(draw) -> BlockSparseAttention:
    kv_heads = draw(few)
    indexer = BlockIndexer(draw(few), draw(small), draw(st.integers(1, 7)), draw(st.integers(1, 4)), NORM)
    return BlockSparseAttention(kv_heads * draw(few), kv_heads, 2 * draw(few), indexer=indexer)


def latent(indexer) -> st.SearchStrategy:
    ranks = st.none() | small if indexer is None else small  # an indexer reads the queries' latent
    return st.builds(
        LatentAttention, small, ranks, small, small, small, small, st.just(NORM), st.booleans(),
        indexer=st.none() if indexer is None else indexer, output_gate=st.booleans(),
    )  # fmt: skip


@st.composite
def compressed(draw) -> CompressedAttention:
    groups, rate = draw(few), draw(st.none() | st.integers(1, 6))
    indexer = draw(st.none() | st.builds(Indexer, few, small, st.integers(1, 8))) if rate else None
    sizes = groups * draw(few), 2 * draw(few), draw(small), groups, draw(small), draw(st.integers(1, 12))
    return CompressedAttention(*sizes, NORM, rate, indexer)


@st.composite
def grouped(draw, kind, keys, *rest):
    """A mixer of heads and of groups that divide them."""
    groups = draw(few)
    return kind(**dict(zip(keys, (groups, groups * draw(few)), strict=True)), **{name: draw(s) for name, s in rest})


MIXERS = {
    "attention": attention(),
    "window": attention(sliding_window=st.integers(1, 30)),
    "chunk": attention(attention_chunk_size=st.integers(1, 30)),
    "blocks": block_sparse(),
    "latent": latent(None),
    "chosen": latent(st.builds(Indexer, few, small, st.integers(1, 30))),
    "compressed": compressed(),
    "mamba": st.builds(Mamba, small, small, small, small, st.booleans(), st.booleans(), st.none() | st.just(NORM)),
    "mamba2": grouped(
        Mamba2, ("n_groups", "num_heads"), ("head_dim", small), ("state_size", small), ("conv_kernel", small),
        ("norm", st.none() | st.just(NORM)),
    ),
    "delta": grouped(
        GatedDeltaNet, ("linear_num_key_heads", "linear_num_value_heads"), ("linear_key_head_dim", small),
        ("linear_value_head_dim", small), ("linear_conv_kernel_dim", small), ("norm", st.just(NORM)),
    ),
    "kimi delta": st.builds(KimiDelta, small, small, small, st.just(NORM)),
    "lightning": st.builds(LightningAttention, small, small, st.just(NORM)),
    "convolution": st.builds(ShortConvolution, small, small, st.booleans()),
    "recurrence": st.builds(GatedLinearRecurrence, small, small, st.integers(2, 6)),
}  # fmt: skip
each = pytest.mark.parametrize("kind", MIXERS)


@st.composite
def feed_forward(draw):
    expert = FeedForward(draw(small), "silu", gated=draw(st.booleans()), bias=draw(st.booleans()))
    if draw(st.booleans()):
        return expert
    number = draw(few)
    shared = FeedForward(draw(small), "silu", gated=True) if draw(st.booleans()) else None
    return MixtureOfExperts(expert, number, draw(st.integers(1, number)), shared, shared_gate=bool(shared))


def model(*mixers, mlp=SWIGLU, D=6, tied=False, **block) -> ModelConfig:
    """A layer a mixer."""
    layers = tuple(Block(mixer, mlp, NORM, **block) for mixer in mixers)
    return ModelConfig(11, D, 4096, Stack(layers, NORM), tie_word_embeddings=tied)


@st.composite
def models(draw, kind: str) -> ModelConfig:
    """One to three layers of a kind of mixer, each with sizes of its own."""
    mixers = [draw(MIXERS[kind]) for _ in range(draw(few))]
    return model(*mixers, mlp=draw(feed_forward()), D=draw(small), tied=draw(st.booleans()))


def run(config: ModelConfig, B=1, T=1, S=1, R=None) -> Pass:
    return Pass("", {"B": B, "T": T, "S": S, "R": T if R is None else R}, bound(config)[1])


def flops(config: ModelConfig, **dims: int) -> int:
    return total(run(config, **dims)).flops


def held(config: ModelConfig, B: int, S: int) -> tuple[int, int, int]:
    return tuple(cache_elements(bound(config)[1], B, S))


# One pass and many.


@each
@given(data=st.data(), T=st.integers(1, 25), B=few)
@examples
def test_a_prefill_is_the_sum_of_its_decodes(kind, data, T, B):
    config = data.draw(models(kind))
    assert flops(config, B=B, T=T, S=T) == sum(flops(config, B=B, T=1, S=S) for S in range(1, T + 1))


@each
@given(data=st.data(), parts=st.lists(st.integers(1, 20), min_size=1, max_size=6))
@examples
def test_a_prefill_in_any_chunks_is_one_prefill(kind, data, parts):
    config, ends = data.draw(models(kind)), np.cumsum(parts).tolist()
    whole = flops(config, T=ends[-1], S=ends[-1])
    assert whole == sum(flops(config, T=T, S=S) for T, S in zip(parts, ends, strict=True))


@each
@given(data=st.data(), B=st.integers(2, 9), T=st.integers(1, 20), past=st.integers(0, 40))
@examples
def test_everything_but_weights_is_linear_in_the_batch(kind, data, B, T, past):
    config = data.draw(models(kind))
    one, many = (total(run(config, B=b, T=T, S=past + T)) for b in (1, B))
    for column in ("flops", "activations", "cache_read", "cache_written"):
        assert getattr(many, column) == B * getattr(one, column), column
    assert one.weights_read <= many.weights_read <= B * one.weights_read
    assert held(config, B, past + T) == tuple(B * part for part in held(config, 1, past + T))


@each
@given(data=st.data(), S=st.integers(1, 60))
@examples
def test_what_is_kept_never_shrinks_with_the_context_and_a_state_never_grows(kind, data, S):
    config = data.draw(models(kind))
    (now, _, state), (later, _, same) = held(config, 1, S), held(config, 1, S + 1)
    assert now <= later and state == same
    assert held(config, 1, 0) == (0, 0, state)


# One count, three algebras.


@each
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_numbers_in_the_formulas_give_the_integers(kind, data):
    config = model(data.draw(MIXERS[kind]), mlp=data.draw(feed_forward()), D=data.draw(small))
    found = {f.quantity: f for f in derive(config)[0] if f.subject == "model"}
    assert found["parameters"].at() == parameters(config)
    for B, T, S, R in ((1, 1, 1, 1), (2, 7, 7, 7), (3, 4, 50, 1)):
        step = run(config, B, T, S, R)
        assert found["FLOPs a pass (B, T, S)"].at(**step.dims) == total(step).flops
        kept = sum(held(config, B, S))
        assert (found["cache and state elements (B, S)"].at(B=B, S=S) if kept else 0) == kept


@each
@given(data=st.data(), points=st.lists(st.tuples(few, st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=5))
@examples
def test_arrays_give_the_integers(kind, data, points):
    config = data.draw(models(kind))
    B, T, past = (np.array(column, float) for column in zip(*points, strict=True))
    for dense in (False, True):
        found = total(run(config, B, T, past + T), dense, ARRAYS)
        for index, (b, t, before) in enumerate(points):
            whole = total(run(config, b, t, before + t), dense)
            for column in Cost._fields:
                assert np.broadcast_to(getattr(found, column), B.shape)[index] == getattr(whole, column), column
    kept = cache_elements(bound(config)[1], B, past + T, 0, ARRAYS)
    for index, (b, t, before) in enumerate(points):
        assert tuple(np.broadcast_to(part, B.shape)[index] for part in kept) == held(config, b, before + t)


# Limits that do not limit.


@pytest.mark.parametrize("limit", ["sliding_window", "attention_chunk_size"])
@given(full=MIXERS["attention"], T=st.integers(1, 30), past=st.integers(0, 30), spare=st.integers(0, 30))
@examples
def test_a_window_or_chunk_as_long_as_the_context_is_full_attention(limit, full, T, past, spare):
    S = past + T
    one, other = model(full), model(replace(full, **{limit: S + spare}))
    assert total(run(one, T=T, S=S)) == total(run(other, T=T, S=S))
    assert held(one, 1, S) == held(other, 1, S)
    shorter = model(replace(full, **{limit: S - 1})) if S > 1 else None
    assert shorter is None or flops(shorter, T=S, S=S) < flops(one, T=S, S=S)


@given(full=latent(st.builds(Indexer, few, small, st.just(1))), T=st.integers(1, 30), past=st.integers(0, 30))
@examples
def test_choosing_all_keys_is_full_attention_beside_the_choice(full, T, past):
    S = past + T
    chosen = model(replace(full, indexer=replace(full.indexer, index_topk=S)))
    of = {line.name: cost for line, cost in zip(bound(chosen)[1].lines, costs(run(chosen, T=T, S=S)), strict=True)}
    plain = run(model(replace(full, indexer=None)), T=T, S=S)
    for line, cost in zip(plain.bound.lines, costs(plain), strict=True):
        assert of.pop(line.name) == cost
    assert all(".indexer." in name for name in of)


# Two ways to say one thing.


@given(heads=small, half=few, D=small, T=st.integers(1, 20))
@examples
def test_as_many_key_heads_as_query_heads_is_multi_head_attention(heads, half, D, T):
    keys = {
        "model_type": "transformer", "hidden_size": D, "num_attention_heads": heads, "head_dim": 2 * half,
        "num_hidden_layers": 2, "intermediate_size": 7, "vocab_size": 9,
    }  # fmt: skip
    plain, grouped = config_from_keys(keys), config_from_keys(keys | {"num_key_value_heads": heads})
    assert plain == grouped
    assert parameters(plain) == 2 * (4 * D * heads * 2 * half + 3 * D * 7 + 2 * D) + D + 2 * 9 * D
    assert held(plain, 1, T) == (2 * 2 * heads * 2 * half * T, 0, 0)
    products = 2 * 2 * heads * 2 * half * (T * (T + 1) // 2)
    assert flops(plain, T=T, S=T) == 2 * (products + 2 * T * (4 * D * heads * 2 * half + 3 * D * 7)) + 2 * T * D * 9


@given(D=small, F=small, gated=st.booleans(), B=few, T=st.integers(1, 20))
@examples
def test_one_expert_is_a_dense_layer_and_its_router(D, F, gated, B, T):
    dense, mixer = FeedForward(F, "silu", gated=gated), Attention(2, 1, 4)
    one, other = model(mixer, mlp=dense, D=D), model(mixer, mlp=MixtureOfExperts(dense, 1, 1), D=D)
    assert parameters(other) == active_parameters(other) == parameters(one) + D
    assert flops(other, B=B, T=T, S=T) == flops(one, B=B, T=T, S=T) + 2 * B * T * D


@each
@given(data=st.data(), T=st.integers(1, 20))
@examples
def test_a_tied_model_is_the_untied_one_without_the_head(kind, data, T):
    config = data.draw(models(kind))
    tied, untied = (replace(config, tie_word_embeddings=flag) for flag in (True, False))
    assert parameters(untied) - parameters(tied) == config.vocab_size * config.hidden_size
    assert flops(tied, T=T, S=T) == flops(untied, T=T, S=T)


@pytest.mark.parametrize("kind", ["latent", "chosen"])
@given(data=st.data(), S=st.integers(1, 40))
@examples
def test_both_forms_of_latent_attention_own_and_keep_the_same(kind, data, S):
    absorbed = data.draw(models(kind))
    other = expanded(absorbed)
    assert other != absorbed and parameters(other) == parameters(absorbed)
    assert held(other, 2, S) == held(absorbed, 2, S)


@pytest.mark.parametrize("kind", ["attention", "latent", "mamba", "delta"])
@given(data=st.data(), T=st.integers(1, 20))
@examples
def test_a_parallel_block_behind_one_norm_has_a_norm_less(kind, data, T):
    mixers, D = [data.draw(MIXERS[kind]) for _ in range(2)], data.draw(small)
    serial, shared, own = (model(*mixers, D=D, parallel=parallel) for parallel in (None, "shared", "own"))
    assert parameters(serial) - parameters(shared) == len(mixers) * D
    assert parameters(serial) == parameters(own)
    assert flops(serial, T=T, S=T) == flops(shared, T=T, S=T) == flops(own, T=T, S=T)
