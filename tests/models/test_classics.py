"""The three models that are written out are the published ones."""

import pytest

import models
from archcalc.cost import parameters
from archcalc.presets import preset
from models import classics


@pytest.mark.parametrize(
    ("written", "published"),
    [(classics.transformer_2017, "transformer-base"), (classics.gpt2, "gpt2"), (classics.llama3_8b, "llama3.1-8b")],
)
def test_a_written_config_is_the_published_one(written, published):
    assert written() == preset(published)
    model = models.build(written(), device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters(preset(published))
