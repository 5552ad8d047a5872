"""What CONTRIBUTING.md shows is what happens: its example is read from the page, registered and counted."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from archcalc.config import FeedForward, Norm
from archcalc.cost import bound, cache_elements, parameters
from archcalc.errors import ConfigError
from archcalc.families import MODULES
from archcalc.hf import config_from_keys
from archcalc.presets import row

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
FAMILY, BY_HAND = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
CONFIG = json.loads(re.search(r"^```json\n(.*?)^```", TEXT, re.M | re.S).group(1))


@pytest.fixture
def sparrow(monkeypatch):
    """The module of the page, as if it were a file and had its line in MODULES."""
    module = ModuleType("archcalc.families.sparrow")
    exec(compile(FAMILY, "CONTRIBUTING.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(MODULES, "sparrow", "sparrow")


def test_the_page_and_its_example_are_short():
    assert len(TEXT.splitlines()) <= 150
    assert len(FAMILY.splitlines()) <= 30


def test_the_example_is_counted_as_by_hand(sparrow):
    expected: dict[str, int] = {}
    exec(BY_HAND, {}, expected)
    config = config_from_keys(CONFIG)
    assert parameters(config) == expected["parameters"]
    held = [cache_elements(bound(config)[1], 1, tokens)[0] for tokens in (1, 1000)]
    assert held == [expected["cache_of_a_token"], expected["cache_after_1000_tokens"]]


def test_the_example_is_what_the_page_says(sparrow):
    config = config_from_keys(CONFIG)
    blocks = config.decoder.layers
    assert [block.self_attn.sliding_window for block in blocks] == [512, 512, 512, None]
    for block in blocks:
        assert (block.parallel, block.norm.kind) == ("shared", "layernorm")
        assert block.self_attn.qk_norm == Norm("layernorm", 1e-5, bias=False)
        assert block.mlp == FeedForward(256, "relu2", gated=False)


@pytest.mark.parametrize("keys", [{"dropconnect": 0.1}, {"width": 64.0}, {"width": None}])
def test_the_example_refuses_like_every_family(sparrow, keys):
    with pytest.raises(ConfigError, match=next(iter(keys)) if keys != {"width": None} else "hidden_size or width"):
        config_from_keys(CONFIG | keys)


def test_the_row_of_a_preset_is_like_a_real_one():
    shown = re.search(r'"checked": (\{.*?\})', TEXT).group(1)
    assert json.loads(shown) == row("llama3-8b")["checked"]


def test_every_file_that_is_named_exists():
    root = Path(__file__).parent.parent
    made = {"archcalc/families/sparrow.py"}
    named = set(re.findall(r"`((?:archcalc|models|tests|reports)/[\w./]+\w)`", TEXT)) - made
    assert len(named) >= 8
    for name in named:
        assert (root / name).exists(), name
