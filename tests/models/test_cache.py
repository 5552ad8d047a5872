"""What a cache refuses, and what it keeps."""

from dataclasses import replace

import pytest
import torch
from tiny_models import DECODER_ONLY, ids, lively, llama_like

import models
from archcalc.config import Attention, Mamba2, Norm, RopeScaling, Rotary
from models import Cache
from models.cache import CacheError
from models.generate import greedy

RMS = Norm("rmsnorm", 1e-5)


def filled(config, tokens: int, capacity: int | None = None):
    model = lively(config)
    cache = Cache.empty(config, 2, capacity)
    model(ids(2, tokens), cache=cache)
    return model, cache


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        ([[6], [6]], "a pass after 5 tokens may go back over padding, no further"),
        ([[5], [-2]], "a pass after 5 tokens may go back over padding, no further"),
        ([[20], [5]], "capacity=16: this pass needs 21"),
    ],
)
def test_a_gap_or_a_slot_before_the_first_is_refused(positions, says):
    model, cache = filled(DECODER_ONLY["llama"], 5, 16)
    with pytest.raises(CacheError, match=says):
        model(ids(2, 1), torch.tensor(positions), cache)
    assert cache.length == 5
    model(ids(2, 1), torch.tensor([[5], [3]]), cache)  # the second row was padded behind
    assert cache.length == 6


def test_a_first_pass_begins_at_the_beginning():
    model = lively(DECODER_ONLY["llama"])
    with pytest.raises(CacheError, match="a pass after 0 tokens"):
        model(ids(2, 1), torch.tensor([[5], [5]]), Cache.empty(model.config, 2, 16))


def test_a_state_cannot_go_back_over_padding():
    config = llama_like(Mamba2(4, 8, 12, 2, 4, norm=RMS))
    model, cache = filled(config, 5, 16)
    with pytest.raises(CacheError, match="must go on where it ended"):
        model(ids(2, 1), torch.tensor([[5], [3]]), cache)


def test_another_batch_or_type_is_refused():
    model = lively(DECODER_ONLY["llama"])
    with pytest.raises(CacheError, match="batch 3: the cache is for 2 sequences"):
        model(ids(3, 4), cache=Cache.empty(model.config, 2))
    for capacity in (None, 8):
        with pytest.raises(CacheError, match=r"torch.float32 into a cache of torch.float16"):
            model(ids(2, 4), cache=Cache.empty(model.config, 2, capacity, torch.float16))


def test_a_window_is_all_that_is_held():
    attention = Attention(4, 2, 8, rotary=Rotary(), sliding_window=3)
    _, cache = filled(llama_like(attention), 50)
    for tensor in cache.layers[0].tensors:
        assert tensor.shape[-2] == 3
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_padding_is_no_position_of_the_model():
    """Twelve columns, of which eight are padding, in a model of sixteen positions: eight more tokens have room."""
    model = lively(replace(DECODER_ONLY["llama"], max_position_embeddings=16))
    prompt = torch.tensor([[0] * 8 + [5, 6, 7, 8]])
    cache = Cache.empty(model.config, 1)
    model(prompt, torch.arange(12)[None] - 8, cache)
    for position in range(4, 16):
        last = model(torch.tensor([[9]]), torch.tensor([[position]]), cache)
    assert torch.allclose(last[:, -1], model(torch.tensor([[5, 6, 7, 8] + [9] * 12]))[:, -1], atol=1e-4)
    with pytest.raises(CacheError, match="max_position_embeddings=16: this pass needs 17"):
        model(torch.tensor([[9]]), torch.tensor([[16]]), cache)


def test_longrope_is_not_mixed_with_what_was_turned_for_a_short_context():
    scaling = RopeScaling(
        "longrope", 4.0, original_max_position_embeddings=6, long_factor=(1.0, 2.0, 3.0, 4.0), short_factor=(1.0,) * 4
    )
    model = lively(llama_like(Attention(4, 2, 8, rotary=Rotary(10000.0, scaling))))
    growing = Cache.empty(model.config, 2)
    model(ids(2, 6), cache=growing)
    with pytest.raises(models.cache.ArchcalcError, match="7 tokens: earlier keys were turned for at most 6"):
        model(ids(2, 1), cache=growing)
    static, tokens = Cache.empty(model.config, 2, 12), ids(2, 9)
    pieces = [model(part, cache=static) for part in tokens.split((5, 2, 2), 1)]
    assert torch.allclose(torch.cat(pieces, 1), model(tokens), atol=1e-5)
    prompt = tokens[:1].tolist()[0]
    (new,) = greedy(model, [prompt[:4]], 6)
    again = prompt[:4]
    for _ in range(6):
        again = [*again, int(model(torch.tensor([again + [0] * (9 - len(again))]))[0, len(again) - 1].argmax())]
    assert new == again[4:]
