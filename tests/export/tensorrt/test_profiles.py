"""Ranges of the named axes, from sizes or from shapes in trtexec's words."""

import pytest
from engines import CAPACITY

from archcalc.errors import ConfigError
from export.engine_from_onnx import build_engine
from export.engine_profiles import input_axes, profiles, source_profiles
from export.files import ExportError

AXES = {
    "input_ids": ("batch", "tokens"), "position_ids": ("batch", "tokens"), "write_indices": ("batch",),
    "logit_indices": ("batch", "logit_positions"), "past_key_values.0.key": ("batch", 2, 64, 16),
}  # fmt: skip


def test_from_sizes():
    decode, prefill = profiles(4096, 2, 4096).values()
    assert decode == {"batch": (1, 1, 2), "tokens": (1, 1, 1), "logit_positions": (1, 1, 1)}
    assert prefill == {"batch": (1, 1, 2), "tokens": (1, 512, 4096), "logit_positions": (1, 1, 4096)}
    assert profiles(64, 2, 8)["prefill"]["tokens"] == (1, 8, 8)


def test_from_shapes():
    shapes = {
        "minShapes": {"input_ids": (1, 2)},
        "optShapes": {"input_ids": (2, 32)},
        "maxShapes": {"input_ids": (8, 48), "logit_indices": (8, 4), "past_key_values.0.key": (8, 2, 64, 16)},
    }
    decode, prefill = profiles(64, 4, 64, shapes, AXES).values()
    assert prefill == {"batch": (1, 2, 8), "tokens": (2, 32, 48), "logit_positions": (1, 1, 4)}
    assert decode == {"batch": (1, 2, 8), "tokens": (1, 1, 1), "logit_positions": (1, 1, 1)}
    prefill = profiles(64, 4, 64, {"maxShapes": {"input_ids": (3, 16)}}, AXES)["prefill"]
    assert prefill == {"batch": (1, 1, 3), "tokens": (1, 16, 16), "logit_positions": (1, 1, 16)}
    prefill = profiles(64, 4, 64, {"minShapes": {"write_indices": (3,)}}, AXES)["prefill"]
    assert prefill["batch"] == (3, 3, 4)


READS = AXES | {"source_mask": ("batch", "source_tokens"), "cross.0.key": ("batch", 4, "source_tokens", 16)}


def test_of_a_source():
    """Both plans have one range of sources, whatever a prompt's tokens are."""
    for profile in profiles(64, 2, 8, axes=READS, max_source=400).values():
        assert profile["source_tokens"] == (1, 128, 400)
    assert source_profiles(2, 400) == {"source": {"batch": (1, 1, 2), "source_tokens": (1, 128, 400)}}
    assert source_profiles(2, None) == {"source": {"batch": (1, 1, 2)}}  # of one length, which the graph has
    shapes = {"optShapes": {"source_mask": (2, 30)}, "maxShapes": {"input_ids": (3, 16), "source_mask": (3, 90)}}
    expected = {"batch": (1, 2, 3), "source_tokens": (1, 30, 90)}
    assert source_profiles(2, 400, shapes, READS) == {"source": expected}
    assert profiles(64, 2, 8, shapes, READS, 400)["decode"] == expected | {
        "tokens": (1, 1, 1), "logit_positions": (1, 1, 1),
    }  # fmt: skip
    with pytest.raises(ExportError, match="axis source_tokens is 90 elsewhere, 91 here"):
        source_profiles(2, 400, {"maxShapes": {"source_mask": (3, 90), "cross.0.key": (3, 4, 91, 16)}}, READS)
    with pytest.raises(ConfigError, match="max_source=0"):
        source_profiles(2, 0)


@pytest.mark.parametrize(
    ("bound", "shapes", "message"),
    [
        ("maxShapes", {"ids": (1, 1)}, r"maxShapes=ids:1x1: the graph has no such input; give some of input_ids, "),
        ("maxShapes", {"input_ids": (1, 1, 1)}, r"input_ids:1x1x1: input_ids has the axes \['batch', 'tokens'\]"),
        ("maxShapes", {"input_ids": (2, 8), "write_indices": (3,)}, "indices:3: axis batch is 2 elsewhere, 3 here"),
        ("optShapes", {"past_key_values.0.key": (1, 2, 32, 16)}, "axis 64 is 64 elsewhere, 32 here"),
        ("minShapes", {"input_ids": (5, 1)}, "batch: minShapes=5, optShapes=4, maxShapes=4 are not in order"),
        ("optShapes", {"input_ids": (1, 65)}, "tokens: minShapes=1, optShapes=65, maxShapes=64 are not in order"),
        ("maxShapes", {"input_ids": (1, 65)}, "maxShapes: tokens=65, the cache's capacity=64; give at most that many"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_go(bound, shapes, message):
    with pytest.raises(ExportError, match=message):
        profiles(64, 4, 64, {bound: shapes}, AXES)


def test_sizes_that_do_not_go():
    with pytest.raises(ExportError, match=r"max_prompt=65: .*capacity=64"):
        profiles(64, 4, 65)
    with pytest.raises(ConfigError, match="max_batch=0"):
        profiles(64, 0, 8)


def test_shapes_reach_the_engine(fresh):
    opened = fresh()
    axes = input_axes(opened.graph(CAPACITY))
    assert axes["input_ids"] == ("batch", "tokens")
    assert axes["past_key_values.1.value"] == ("batch", 2, CAPACITY, 16)
    shapes = {"minShapes": {"input_ids": (2, 2)}, "maxShapes": {"input_ids": (6, 9)}}
    facts = build_engine(opened, CAPACITY, shapes=shapes, builder_optimization_level=0).facts
    assert facts["profiles"] == {
        "decode": {"batch": [2, 2, 6], "tokens": [1, 1, 1], "logit_positions": [1, 1, 1]},
        "prefill": {"batch": [2, 2, 6], "tokens": [2, 9, 9], "logit_positions": [1, 1, 9]},
    }
