"""Generation: which token is drawn, when a row ends, how prompts share a batch, what a cache keeps."""

import math

import pytest
import torch
from tiny_models import DECODER_ONLY, ENCODER_DECODER, ids, lively

import models
from archcalc.errors import ArchcalcError
from archcalc.hf import config_from_keys
from models.generate import CACHES, generate, greedy
from models.perplexity import perplexity
from models.sampling import Sampler

LOGITS = torch.tensor([[0.1, 2.0, -1.0, 1.2, 0.7, -3.0]])
MAMBA2 = {
    **{"model_type": "mamba2", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8},
    **{"num_heads": 4, "head_dim": 8, "n_groups": 2, "conv_kernel": 4, "expand": 2, "chunk_size": 4},
}


def continued(model, prompts, count, **options) -> list[list[int | None]]:
    """Rows of `generate`."""
    return [list(row) for row in zip(*generate(model, prompts, count, **options), strict=True)]


# What is drawn


def shares(sampler: Sampler, draws=20_000) -> torch.Tensor:
    return sampler(LOGITS.expand(draws, -1)).bincount(minlength=LOGITS.shape[-1]) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_distribution(temperature):
    expected, draws = (LOGITS[0] / temperature).softmax(-1), 20_000
    counts = shares(Sampler(temperature), draws) * draws
    chi_square = ((counts - draws * expected) ** 2 / (draws * expected)).sum().item()
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand


def test_top_k_draws_the_k_likeliest_in_their_proportion():
    found = shares(Sampler(top_k=2))
    assert found.nonzero().flatten().tolist() == [1, 3]
    assert found[1] / found[3] == pytest.approx(math.exp(0.8), rel=0.05)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.55, 0.8, 0.9, 0.95, 0.999, 1.0])
def test_top_p_draws_from_the_smallest_set_that_reaches_p(p):
    own = LOGITS[0].double().softmax(-1)
    kept = set(Sampler(top_p=p).probabilities(LOGITS)[0].nonzero().flatten().tolist())
    ranked = own.argsort(descending=True).tolist()
    assert kept == set(ranked[: len(kept)])
    assert own[list(kept)].sum() >= p - 1e-7
    assert p == 1.0 or own[ranked[: len(kept) - 1]].sum() < p  # with one less it is not reached


def test_top_p_stops_exactly_at_p():
    halves = torch.tensor([[0.25, 0.5, 0.25]]).log()
    assert Sampler(top_p=0.5).probabilities(halves)[0].nonzero().flatten().tolist() == [1]
    assert Sampler(top_p=0.51).probabilities(halves)[0].nonzero().flatten().tolist() == [0, 1]


def test_top_k_comes_before_top_p():
    flat = torch.zeros(1, 10)
    assert Sampler(top_k=4, top_p=0.5).probabilities(flat).count_nonzero() == 2  # 5 the other way round


def test_cold_is_greedy_and_one_seed_is_one_text():
    model, prompts = lively(DECODER_ONLY["llama"]), [[1, 2, 3], [5]]
    likely = continued(model, prompts, 12)
    for cold in (Sampler(0), Sampler(1e-8), Sampler(1e-320), Sampler(1.0, top_k=1), Sampler(1.0, top_p=1e-9)):
        assert continued(model, prompts, 12, sampler=cold) == likely
    drawn = [continued(model, prompts, 12, sampler=Sampler(2.0, seed=seed)) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("field", "bad"), [("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf), ("top_k", 0),
                       ("top_p", 0.0), ("top_p", 1.1), ("top_p", math.nan), ("seed", -1), ("seed", 2**64)],
)  # fmt: skip
def test_bad_values_are_named(field, bad):
    with pytest.raises(ArchcalcError, match=f"{field}="):
        Sampler(**{field: bad})


def test_logits_that_are_no_numbers_are_not_drawn_from():
    with pytest.raises(ArchcalcError, match="not finite"):
        Sampler()(torch.tensor([[1.0, math.nan]]))


# When a row ends


def test_a_row_ends_at_any_end_token_and_the_others_go_on():
    model, prompts = lively(DECODER_ONLY["llama"]), [[1, 2, 3], [9, 8]]
    free = continued(model, prompts, 10)
    ends = {free[0][3], free[1][6]}
    expected = []
    for row in free:
        cut = next(i for i, token in enumerate(row) if token in ends)
        expected.append(row[:cut] + [None] * (10 - cut))
    longest = max(row.index(None) for row in expected)
    assert continued(model, prompts, 10, eos=ends) == [row[:longest] for row in expected]
    assert greedy(model, prompts, 10, free[0][3])[0] == free[0][: free[0].index(free[0][3])]
    assert list(generate(model, [[1, 2, 3]], 10, eos={free[0][0]})) == []


def test_tokens_come_one_by_one():
    model = lively(DECODER_ONLY["llama"])
    passes = []
    model.layers[0].register_forward_hook(lambda *_: passes.append(1))
    steps = generate(model, [[1, 2]], 60)
    assert passes == []
    next(steps)
    next(steps)
    assert len(passes) == 2


# Prompts of any lengths, caches of both kinds


def by_hand(model, prompt: list[int], count: int) -> list[int]:
    """The same without cache and batch."""
    line = list(prompt)
    for _ in range(count):
        line.append(int(model(torch.tensor([line]))[0, -1].argmax()))
    return line[len(prompt) :]


def every_decoder():
    yield from DECODER_ONLY.items()
    yield "mamba2", config_from_keys(MAMBA2)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("name", "config"), every_decoder(), ids=[name for name, _ in every_decoder()])
def test_unequal_prompts_equal_each_alone_with_either_cache(name, config, cache):
    model = lively(config)
    prompts = [ids(1, length, seed=length)[0].tolist() for length in (9, 2, 5)]
    together = continued(model, prompts, 10, cache=cache)
    assert together == [by_hand(model, prompt, 10) for prompt in prompts]
    assert len({tuple(row) for row in together}) == 3


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_an_encoder_decoder_writes_a_target_of_each_source(name, cache):
    model = lively(ENCODER_DECODER[name])
    sources = [ids(1, length, seed=length)[0].tolist() for length in (9, 2, 5)]
    reads = []
    model.encoder.layers[0].register_forward_hook(lambda *_: reads.append(1))
    together = continued(model, sources, 8, cache=cache, start_id=7)
    assert len(reads) == 1
    for source, row in zip(sources, together, strict=True):
        target = [7]
        for _ in range(8):
            target.append(int(model(torch.tensor([source]), torch.tensor([target]))[0, -1].argmax()))
        assert row == target[1:]
    with pytest.raises(ArchcalcError, match="decoder_start_token_id=None"):
        list(generate(model, sources, 8))


def test_a_window_of_512_keeps_512_tokens_of_700():
    keys = {
        **{"model_type": "mistral", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "rms_norm_eps": 1e-5},
        **{"max_position_embeddings": 1024, "sliding_window": 512, "rope_theta": 10000.0},
    }
    windowed, full = config_from_keys(keys), config_from_keys(keys | {"sliding_window": None})
    slot = 2 * 2 * 2 * 4 * 4  # layers, k and v, K, H, bytes
    for config, slots in ((windowed, 512), (full, 700)):
        model, cache, tokens = lively(config), models.Cache.empty(config, 1), ids(1, 701)
        model(tokens[:, :690], cache=cache)
        for at in range(690, 700):
            model(tokens[:, at : at + 1], cache=cache)
        assert cache.nbytes == slots * slot
        next_logits = model(tokens[:, 700:], cache=cache)
        torch.testing.assert_close(next_logits, model(tokens)[:, 700:], atol=1e-3, rtol=1e-3)
    assert continued(model, [tokens[0, :600].tolist()], 20) == continued(
        model, [tokens[0, :600].tolist()], 20, cache="static"
    )


def test_a_static_cache_is_allocated_once_and_a_growing_one_is_not(monkeypatch):
    asked, empty = [], models.Cache.empty
    monkeypatch.setattr(models.Cache, "empty", lambda *a, **k: asked.append(a[2]) or empty(*a, **k))
    model = lively(DECODER_ONLY["llama"])
    for cache in CACHES:
        continued(model, [[1, 2, 3], [4]], 5, cache=cache)
    assert asked == [None, 8]


# What is refused


def test_what_cannot_be_continued_is_refused_before_the_first_token():
    model = lively(DECODER_ONLY["llama"])
    for prompts, count, options, told in [
        ([[1], []], 3, {}, "every prompt needs a token"),
        ([], 3, {}, "every prompt needs a token"),
        ([[61]], 3, {}, "id 61, but vocab_size=61"),
        ([[-1]], 3, {}, "id -1"),
        ([[1] * 60], 5, {}, "more than max_position_embeddings=64"),
        ([[1]], 3, {"cache": "paged"}, "cache='paged'"),
    ]:
        with pytest.raises(ArchcalcError, match=told):
            generate(model, prompts, count, **options)
    assert len(continued(model, [[1] * 60], 4)[0]) == 4


# Perplexity


def test_perplexity_is_the_mean_surprise_of_every_token_but_the_first():
    model, tokens = lively(DECODER_ONLY["llama"]), ids(1, 30)
    log_p = model(tokens).double().log_softmax(-1)[0, :-1].gather(-1, tokens[0, 1:, None])
    assert perplexity(model, tokens[0].tolist()) == pytest.approx(math.exp(-log_p.mean()), rel=1e-6)
    uniform = models.build(DECODER_ONLY["llama"])
    uniform.lm_head.weight.zero_()
    assert perplexity(uniform, tokens[0].tolist(), window=7) == pytest.approx(61)


def test_perplexity_in_windows_predicts_every_token_once():
    model, tokens = lively(DECODER_ONLY["llama"]), ids(1, 30)
    log_p = []
    for begin in (0, 8, 16, 24):
        read, predicted = tokens[:, begin : min(begin + 8, 29)], tokens[0, begin + 1 : begin + 9, None]
        log_p.append(model(read).double().log_softmax(-1)[0].gather(-1, predicted))
    assert sum(map(len, log_p)) == 29
    expected = math.exp(-torch.cat(log_p).mean())
    assert perplexity(model, tokens[0].tolist(), window=8) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ArchcalcError, match="window=65"):
        perplexity(model, [1, 2], window=65)
    with pytest.raises(ArchcalcError, match="at least 2"):
        perplexity(model, [1])
