"""Random weights that come some rows at a time are those that came whole."""

import pytest
import torch
from torch import nn

import models
from archcalc.presets import preset
from models import random_weights
from models.norm import RMSNorm


def whole(config, dtype, seed):
    """The same model, each of its tensors filled by one call."""
    model = models.build(config, dtype=dtype, seed=seed + 1)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Linear | nn.Embedding) or tensor.ndim > 1:
            nn.init.normal_(tensor, std=0.02, generator=generator)
        else:
            offset = owner.config.offset if isinstance(owner, RMSNorm) else 0
            nn.init.constant_(tensor, 1.0 - offset if name.endswith("weight") else 0.0)
    return model.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1, 1000, 2**22])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny-decoder", {"vocab_size": 261, "intermediate_size": 37}),
        ("tiny-decoder", {"vocab_size": 9, "intermediate_size": 1, "tie_word_embeddings": True}),
        ("tiny-encoder-decoder", {}),
    ],
)
def test_pieces_have_the_numbers_of_the_whole(monkeypatch, name, changes, at_once, dtype):
    monkeypatch.setattr(random_weights, "AT_ONCE", at_once)
    config = preset(name, changes)
    found, expected = models.build(config, dtype=dtype, seed=5).state_dict(), whole(config, dtype, 5)
    assert found.keys() == expected.keys()
    for tensor in expected:
        assert torch.equal(found[tensor], expected[tensor]), tensor


def test_a_large_matrix_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(random_weights, "AT_ONCE", 1000)
    rows = [(start, len(part)) for name, start, part in random_weights.random_rows(nn.Linear(20, 70, bias=False))]
    assert rows == [(0, 48), (48, 22)], "steps of whole blocks of 16 rows, as many as 1000 numbers have"
