"""What a paged engine reserves: blocks, ranks, windows, states, and what fits."""

import pytest

from archcalc.config import (
    Attention,
    Block,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    ModelConfig,
    Norm,
    Stack,
)
from archcalc.cost import bound, cache_elements
from archcalc.errors import ConfigError
from archcalc.memory import LONGEST, Paged, Reserved, holdings, parse_bytes, reserved
from archcalc.precision import precision
from archcalc.presets import names, preset

BF16, INT4 = precision("bf16"), precision("int4")
NORM = Norm("rmsnorm", 1e-6)
LATENT = LatentAttention(16, None, 64, 32, 16, 32, NORM)
DELTA = GatedDeltaNet(4, 8, 16, 32, 4, NORM)
STATE_SPACE = Mamba2(num_heads=16, head_dim=8, state_size=4, n_groups=2, conv_kernel=4)


def decoder(*mixers) -> ModelConfig:
    blocks = tuple(Block(mixer, FeedForward(64, "silu", gated=True), NORM) for mixer in mixers)
    return ModelConfig(100, 64, 10_000, Stack(blocks, NORM))


def cache(config, stored=BF16, **engine) -> Reserved:
    return Reserved(config, Paged(**engine), stored)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("context", "source"), [(1, 1), (100, 70)])
def test_blocks_of_one_token_without_windows_are_the_logical_cache(name, context, source):
    config = preset(name)
    held = cache_elements(bound(config)[1], 1, context, source, static=True)
    assert cache(config, block_size=1).request(context, source) == 2 * sum(held)


@pytest.mark.parametrize(("context", "blocks"), [(1, 1), (16, 1), (17, 2), (20_000, 1_250)])
def test_a_request_takes_whole_blocks(context, blocks):
    one = cache(preset("llama3-8b"))
    assert one.request(context) == blocks * one.per_block() == blocks * 16 * 131_072


@pytest.mark.parametrize(
    ("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)]
)  # split while they last, then replicated
def test_heads_over_ranks(tp, heads):
    config = preset("llama3-8b")
    found = reserved(config, Paged(tp=tp), 3, 100, 0, BF16)
    assert found["rank_bytes_per_token"] == 32 * 2 * heads * 128 * 2
    assert found["rank_bytes"] == 3 * 112 * found["rank_bytes_per_token"]
    assert found["bytes"] == tp * found["rank_bytes"]


def test_latents_are_on_every_rank():
    found = [cache(decoder(LATENT, LATENT), tp=tp).per_token() for tp in (1, 2, 16)]
    assert found == [2 * (64 + 16) * 2] * 3


def test_states_are_split():
    whole, half = ([h.elements for h in holdings(decoder(DELTA), tp)] for tp in (1, 2))
    assert whole == [(2 * 4 * 16 + 8 * 32) * 4, 8 * 16 * 32]
    assert half == [n // 2 for n in whole]


@pytest.mark.parametrize(("tp", "groups"), [(1, 2), (2, 1), (4, 1)])
def test_groups_of_a_state_space_are_replicated_when_they_run_out(tp, groups):
    conv, state = (h.elements for h in holdings(decoder(STATE_SPACE), tp))
    assert state == 16 * 8 * 4 // tp
    assert conv == 4 * (16 * 8 // tp + 2 * groups * 4)


def test_a_state_does_not_grow():
    one = cache(decoder(DELTA, STATE_SPACE))
    assert one.request(1) == one.request(10**6) == one.state() > 0
    assert one.per_token() == one.per_block() == 0
    assert one.longest(one.state()) == LONGEST
    assert one.longest(one.state() - 1) == 0
    found = reserved(decoder(DELTA), Paged(room=10 * cache(decoder(DELTA)).state() + 1), 1, 100, 0, BF16)
    assert (found["fits"]["blocks"], found["fits"]["requests"]) == (0, 10)


def windowed(**reach) -> ModelConfig:
    return decoder(Attention(4, 2, 16, **reach), Attention(4, 2, 16))


@pytest.mark.parametrize(
    ("context", "blocks"),
    [(100, 7), (1_000, 63), (1_100, 69), (1_200, 72), (9_999, 72)],  # ceil((128 - 1 + 1009)/16) + 1 = 72
)
def test_a_window_and_the_chunk_that_is_prefilled(context, blocks):
    found = reserved(windowed(sliding_window=128), Paged(prefill_chunk=1_009), 1, context, 0, BF16)
    full = -(-context // 16)
    assert found["rank_bytes_per_request"] == (blocks + full) * 16 * 2 * 2 * 16 * 2
    assert found["blocks_per_request"] == full
    assert found["windowed_blocks_per_request"] == (blocks if blocks < full else None)
    as_full = reserved(windowed(sliding_window=128), Paged(windowed_as_full=True), 1, context, 0, BF16)
    assert as_full["rank_bytes_per_request"] == full * as_full["rank_bytes_per_block"]


def test_a_chunked_layer_holds_its_chunk():
    found = cache(windowed(attention_chunk_size=64), prefill_chunk=100)
    assert [h.slots(found.engine, 5_000, 0) for h in found.held] == [176, 176, 5_008, 5_008]


def test_int4_keys_share_a_byte():
    config = decoder(Attention(1, 1, 2))
    assert cache(config, INT4, block_size=1).request(3) == 6


def test_nothing_is_kept_by_an_encoder_alone():
    block = Block(Attention(4, 4, 16, causal=False), FeedForward(64, "gelu"), NORM)
    config = ModelConfig(100, 64, 100, None, encoder=Stack((block,), NORM))
    assert reserved(config, Paged(room=100), 1, 10, 0, BF16)["rank_bytes_per_request"] == 0


def test_a_pair_of_stacks_reserves_the_source_too():
    config = preset("transformer-base")
    found = reserved(config, Paged(), 1, 20, 40, BF16)
    assert found["rank_bytes_per_request"] == 6 * 2 * 512 * 2 * (32 + 48)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Paged(block_size=0), "block_size=0: must be a whole number"),
        (lambda: Paged(tp=1.5), "tp=1.5: must be"),
        (lambda: Paged(room=5, room_blocks=1), "kv_bytes=5 with kv_blocks=1: one says it"),
        (lambda: holdings(preset("llama3-8b"), 3), "tp=3: must divide num_attention_heads=32"),
        (lambda: holdings(decoder(Attention(12, 6, 16)), 4), "tp=4: neither divides num_key_value_heads=6"),
        (lambda: holdings(decoder(DELTA), 8), "tp=8: must divide heads of a recurrent state=4"),
        (lambda: parse_bytes("much"), "bytes='much': not a count of bytes"),
        (lambda: parse_bytes("3 GIB"), "unit='GIB': not understood; use one of B, kB"),
        (lambda: parse_bytes("-3GiB"), "not a count of bytes"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_units():
    assert parse_bytes("24 GB") == 24 * 10**9
    assert parse_bytes("24GiB") == 24 * 2**30
    assert parse_bytes("3.8125GiB") == 1952 * 16 * 131_072
    assert parse_bytes(" 10 ") == 10
