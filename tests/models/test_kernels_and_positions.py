import math

import pytest
import torch
import torch.nn.functional as F
from tiny_models import assert_close
from torch.utils.flop_counter import FlopCounterMode

from archcalc.config import FeedForward, MixtureOfExperts, RopeScaling, Rotary
from models.feed_forward import ACTIVATIONS, feed_forward_from_config
from models.kernels import Eager
from models.positions import causal_mask, padding_mask, rotary_frequencies, rotary_tables, sinusoids

LLAMA3 = Rotary(500000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_attend_is_attention_and_counts_its_flops(key_heads):
    B, N, T, S, H = 2, 6, 5, 9, 8
    q, k, v = torch.randn(B, N, T, H), torch.randn(B, key_heads, S, H), torch.randn(B, key_heads, S, H)
    mask = torch.rand(B, 1, T, S) < 0.5
    mask[..., 0] = True
    with FlopCounterMode(display=False) as counter:
        y = Eager.attend(q, k, v, mask)
    assert counter.get_total_flops() == 2 * (2 * B * N * T * S * H)
    k, v = k.repeat_interleave(N // key_heads, 1), v.repeat_interleave(N // key_heads, 1)
    assert_close(y, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def test_rms_norm_is_torchs_and_survives_fp16():
    x, weight = torch.randn(3, 16), torch.rand(16)
    assert_close(Eager.rms_norm(x, weight, 1e-5), F.rms_norm(x, (16,), weight, 1e-5))
    large = Eager.rms_norm((x * 1000).half(), weight.half(), 1e-5)
    assert large.dtype == torch.float16 and large.abs().max() > 0.5


def test_cache_write_puts_each_row_at_its_own_slots():
    cache, new = torch.zeros(2, 3, 6, 4), torch.randn(2, 3, 2, 4)
    written = Eager.cache_write(cache, new, torch.tensor([1, 4]))
    expected = torch.zeros(2, 3, 6, 4)
    expected[0, :, 1:3], expected[1, :, 4:6] = new[0], new[1]
    assert torch.equal(written, expected)


def test_rotary_scores_depend_on_distance_only():
    cos, sin = rotary_tables(Rotary(100.0), 8, 32)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i, j):
        return (
            (Eager.rotary(q, cos, sin, torch.tensor([[i]])) * Eager.rotary(k, cos, sin, torch.tensor([[j]])))
            .sum()
            .item()
        )

    assert score(5, 2) == pytest.approx(score(20, 17), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)
    assert torch.equal(Eager.rotary(q, cos, sin, torch.tensor([[0]])), q)


@pytest.mark.parametrize("rotary", [Rotary(10000.0), Rotary(10000.0, RopeScaling("linear", 4.0)), LLAMA3])
def test_rotary_frequencies_are_those_of_transformers(rotary):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "default", "rope_theta": rotary.rope_theta}
    if scaling := rotary.rope_scaling:
        parameters |= {
            "rope_type": scaling.rope_type,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=parameters
    )
    if rotary.rope_scaling:
        expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
        assert factor == 1.0
    else:
        expected = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    assert torch.allclose(rotary_frequencies(rotary, 128, 1), expected, rtol=1e-6, atol=0)
    cos, sin = rotary_tables(rotary, 128, 7)
    assert cos.shape == sin.shape == (7, 64) and cos.dtype == torch.float32
    assert torch.allclose(cos[6], (6 * expected).cos(), atol=1e-5)


def test_llama3_bends_only_the_low_frequencies():
    ratio = rotary_frequencies(Rotary(500000.0), 128, 1) / rotary_frequencies(LLAMA3, 128, 1)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(8) and ((ratio > 1.01) & (ratio < 7.9)).any()


def test_sinusoids_interleave():
    row = sinusoids(torch.tensor([[3]]), 6)[0, 0]
    expected = [f(3 / 10000 ** (i / 6)) for i in (0, 2, 4) for f in (math.sin, math.cos)]
    assert torch.allclose(row, torch.tensor(expected), atol=1e-6)


def test_masks():
    mask = causal_mask(torch.tensor([[2, 3]]), torch.arange(5)[None], window=2)
    assert mask.int().tolist() == [[[[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]]]]
    assert causal_mask(torch.tensor([[2]]), torch.arange(5)[None], None).int().tolist() == [[[[1, 1, 1, 0, 0]]]]
    present = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert padding_mask(present, 1).int().tolist() == [[[[1, 1, 0]]], [[[1, 1, 1]]]]


@pytest.mark.parametrize(
    ("name", "at_one"), [("relu", 1), ("gelu", 0.841345), ("gelu_tanh", 0.841192), ("silu", 0.731059)]
)
def test_activations(name, at_one):
    assert ACTIVATIONS[name](torch.tensor(1.0)).item() == pytest.approx(at_one, abs=1e-6)


def test_experts_are_mixed_as_written_down_and_only_the_chosen_run():
    mixture = feed_forward_from_config(MixtureOfExperts(FeedForward(12, "silu", gated=True), 5, 2), 8)
    mixture.requires_grad_(False)
    x = torch.randn(2, 3, 8)
    with FlopCounterMode(display=False) as counter:
        y = mixture(x)
    assert counter.get_total_flops() == 6 * 2 * 8 * 5 + 6 * 2 * (3 * 2 * 8 * 12)
    for b in range(2):
        for t in range(3):
            scores = mixture.router(x[b, t])
            best = scores.argsort(descending=True)[:2]
            shares = scores[best].softmax(-1)  # equals the softmax over all, normalised among the chosen
            expected = sum(share * mixture.experts[int(e)](x[b, t]) for share, e in zip(shares, best, strict=True))
            assert torch.allclose(y[b, t], expected, atol=1e-6)


def test_a_chunk_hides_what_lies_before_it_and_padding_sees_itself_alone():
    positions = torch.tensor([[-1, 0, 1, 2, 3, 4]])
    visible = causal_mask(positions, positions, chunk=2, padded=True)[0, 0]
    assert [row.nonzero()[:, 0].tolist() for row in visible] == [[0], [1], [1, 2], [3], [3, 4], [5]]
