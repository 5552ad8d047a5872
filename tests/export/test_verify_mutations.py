"""Each way in which a graph or its weights can be wrong fails `verify`, which names the layer at fault."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from archcalc.presets import preset
from export.build import Build, build
from export.divergence import first_divergence
from export.graph import WEIGHTS
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.tolerance import Tolerance
from export.verify import Verdict, verify
from export.verify_cases import cases

CAPACITY, LAYERS = 16, 4


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> tuple[Build, torch.nn.Module]:
    """Four layers with a tied head, and the model."""
    config = preset("tiny-decoder", {"num_hidden_layers": LAYERS, "tie_word_embeddings": True})
    model, origin = reference(config, "random")
    return build(config, tmp_path_factory.mktemp("four") / "build", "fp32", (CAPACITY,), model, origin), model


@pytest.fixture
def verdict_of(four, tmp_path):
    """The verdict on a copy of the build after `damage(proto, weights)`, with fewer steps than the command's."""

    def run(damage) -> Verdict:
        made, model = four
        shutil.copytree(made.folder, tmp_path / "copy")
        copy = replace(made, folder=tmp_path / "copy")
        proto = onnx.load(copy.graph(CAPACITY), load_external_data=False)
        weights = np.memmap(copy.folder / WEIGHTS, np.uint8, "r+")
        damage(proto, weights)
        weights.flush()
        onnx.save_model(proto, copy.graph(CAPACITY))
        files = sorted(copy.folder.iterdir())
        found = verify(copy, OnnxRuntimeEngine(copy, CAPACITY, threads=1), model, steps=3)
        assert sorted(copy.folder.iterdir()) == files  # the graph with more outputs is gone
        return found

    return run


def weight(proto, weights, name: str) -> np.ndarray:
    """A weight in the data file, to write to."""
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    place = {entry.key: entry.value for entry in tensor.external_data}
    begin = int(place["offset"])
    return weights[begin : begin + int(place["length"])].view(np.float32).reshape(tensor.dims)


def constant(proto, value) -> str:
    """The name of a new constant."""
    name = f"constant.{len(proto.graph.initializer)}"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return name


def feed(proto, reader: str, value: str, *nodes) -> None:
    """Run `nodes`, which make `wrong` of `value`, for the call that gives `reader` to read in its place."""
    index = next(i for i, node in enumerate(proto.graph.node) if node.output[0] == reader)
    call = proto.graph.node[index]
    call.input[:] = ["wrong" if name == value else name for name in call.input]
    for node in reversed(nodes):
        proto.graph.node.insert(index, node)


def feed_where(proto, reader: str, value: str, old: int, new: int) -> None:
    """Make the call that gives `reader` read `new` wherever `value` is `old`."""
    equal = helper.make_node("Equal", [value, constant(proto, old)], ["equal"])
    feed(proto, reader, value, equal, helper.make_node("Where", ["equal", constant(proto, new), value], ["wrong"]))


def flip(proto, reader: str, index: list[int], visible: bool) -> None:
    """Make the call that gives `reader` see, or not see, at one place of the mask [B, 1, T, C]."""
    inputs = ["mask.0", constant(proto, [index]), constant(proto, [visible])]
    feed(proto, reader, "mask.0", helper.make_node("ScatterND", inputs, ["wrong"]))


def one_weight(proto, weights):
    weight(proto, weights, "layers.2.mlp.down_proj.weight")[3, 5] += 0.5


def one_weight_of_the_embedding(proto, weights):
    token = cases(preset("tiny-decoder"), CAPACITY)[0].prefill(256).input_ids[0, 0]
    weight(proto, weights, "embed_tokens.weight")[token, 7] += 0.5


def a_transposed_weight(proto, weights):
    matrix = weight(proto, weights, "layers.3.self_attn.o_proj.weight")
    matrix[:] = matrix.T.copy()


def a_nan(proto, weights):
    weight(proto, weights, "layers.1.mlp.up_proj.weight")[0, 0] = np.nan


def a_norm_twice_as_large(proto, weights):
    weight(proto, weights, "layers.2.self_attn_norm.weight")[:] *= 2


def the_mask_hides_a_key(proto, weights):
    flip(proto, "x.3", [0, 0, -1, 1], False)


def the_mask_shows_the_future(proto, weights):
    flip(proto, "x.2", [0, 0, 0, 1], True)


def one_position(proto, weights):
    feed_where(proto, "x.2", "positions", 3, 4)


def a_write_to_another_slot(proto, weights):
    feed_where(proto, "x.3", "write_indices", 9, 10)


def a_swapped_pair_of_layers(proto, weights):
    second, third = proto.graph.node[2], proto.graph.node[3]
    swapped = dict(zip(second.input, third.input, strict=True)) | dict(zip(third.input, second.input, strict=True))
    for node in (second, third):
        node.input[:] = [swapped[name] if name.startswith("layers.") else name for name in node.input]


def a_broken_tie(proto, weights):
    own = weight(proto, weights, "embed_tokens.weight").copy()
    own[:, 0] += 0.1
    proto.graph.initializer.append(numpy_helper.from_array(own, "own_head"))
    head = proto.graph.node[-1]
    head.input[:] = ["own_head" if name == "embed_tokens.weight" else name for name in head.input]


def logits_of_the_token_before(proto, weights):
    # -1, before the first, is the last
    feed(proto, "logits", "logit_indices", helper.make_node("Sub", ["logit_indices", constant(proto, 1)], ["wrong"]))


def a_wrong_scale_of_attention(proto, weights):
    """In the function that all layers call, so the first is the first at fault."""
    block = next(function for function in proto.functions if function.name == "Block0")
    attention = next(node for node in block.node if node.op_type == "Attention")
    attention.attribute.append(helper.make_attribute("scale", 0.3))  # 16 channels a head: 0.25


AT_FAULT = {
    one_weight: "layers.2",
    one_weight_of_the_embedding: "stem",
    a_transposed_weight: "layers.3",
    a_nan: "layers.1",
    a_norm_twice_as_large: "layers.2",
    the_mask_hides_a_key: "layers.2",
    the_mask_shows_the_future: "layers.1",
    one_position: "layers.1",
    a_write_to_another_slot: "layers.2",
    a_swapped_pair_of_layers: "layers.1",
    a_wrong_scale_of_attention: "layers.0",
    a_broken_tie: "head",
    logits_of_the_token_before: "head",
}


@pytest.mark.parametrize("damage", AT_FAULT, ids=lambda damage: damage.__name__)
def test_a_wrong_graph_fails_and_the_layer_is_named(damage, verdict_of):
    verdict = verdict_of(damage)
    assert not verdict.passed
    assert verdict.divergence.first == AT_FAULT[damage]
    names = ["stem", *(f"layers.{i}" for i in range(LAYERS)), "head"]
    before = names[: names.index(AT_FAULT[damage])]
    assert list(verdict.divergence.errors) == names
    assert all(verdict.divergence.errors[name] < 1e-5 for name in before)
    assert verdict.divergence.errors[AT_FAULT[damage]] > 1e-4
    said = f"first diverging layer: {AT_FAULT[damage]} ("
    assert [said in problem for problem in verdict.problems].count(True) == 1
    if before:
        assert f" of 0.0001); {before[-1]} still agrees (" in verdict.problems[-1]


def failing(verdict: Verdict) -> set[str]:
    return {case.case.name for case in verdict.cases if not case.passed}


IN_FRONT = {"unequal prompts, padded in front", "slots ahead of positions"}
BEHIND = "unequal prompts, padded behind"
FULL, LAST = "a full cache in one pass", "the last slot by decoding"


def padding_is_seen(proto, weights):
    """Key positions as if a token's slot were its position."""
    first = helper.make_node("Gather", ["position_ids", constant(proto, 0)], ["wrong"], axis=1)
    feed(proto, "x.0", "write_indices", first)


def the_last_slot_is_hidden(proto, weights):
    visible = (np.arange(CAPACITY) < CAPACITY - 1)[None, None, None]
    feed(proto, "x.1", "mask.0", helper.make_node("And", ["mask.0", constant(proto, visible)], ["wrong"]))


def the_last_slot_is_not_written_by_decoding(proto, weights):
    feed_where(proto, "x.1", "write_indices", CAPACITY - 1, CAPACITY - 2)


def every_row_is_written_where_the_furthest_is(proto, weights):
    """Rows differ in their slots only where prompts are padded behind."""
    furthest = helper.make_node("ReduceMax", ["write_indices"], ["furthest"])
    feed(proto, "x.1", "write_indices", furthest, helper.make_node("Max", ["write_indices", "furthest"], ["wrong"]))


CAUGHT_BY = {
    padding_is_seen: IN_FRONT,
    the_last_slot_is_hidden: {FULL, LAST},
    the_last_slot_is_not_written_by_decoding: {LAST},
    every_row_is_written_where_the_furthest_is: {BEHIND},
}


@pytest.mark.parametrize("damage", CAUGHT_BY, ids=lambda damage: damage.__name__)
def test_every_case_sees_what_the_others_do_not(damage, verdict_of):
    verdict = verdict_of(damage)
    assert failing(verdict) == CAUGHT_BY[damage]
    assert f"in {len(CAUGHT_BY[damage])} of 6 cases" in verdict.problems[0]


class Corrupted:
    """An engine that spoils one slot of one cache tensor after the pass that fills `after` slots."""

    def __init__(self, engine, tensor: int, slot: int, after: int):
        self._engine, self._tensor, self._slot, self._after = engine, tensor, slot, after

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, ids, positions, write, logit, cache):
        logits = self._engine.run(ids, positions, write, logit, cache)
        if write[0] + ids.shape[1] == self._after:
            cache[self._tensor][0, 1, self._slot] += 0.1
        return logits


def test_a_corrupt_slot_of_the_cache_is_found_in_its_layer(four):
    made, model = four
    engine = Corrupted(OnnxRuntimeEngine(made, CAPACITY, threads=1), tensor=4, slot=5, after=9)
    verdict = verify(made, engine, model, steps=3)
    assert not verdict.passed
    assert verdict.cases[0].cache_at == "present.2.key, row 0, slot 5"
    assert verdict.cases[0].failed_pass == 2  # the pass after it reads what was spoilt
    assert verdict.divergence.first == ""  # the graph itself is right
    assert "every layer agrees when run again" in verdict.problems[-1]


def test_a_write_where_nothing_is_read_yet_is_found(four):
    made, model = four
    engine = Corrupted(OnnxRuntimeEngine(made, CAPACITY, threads=1), tensor=3, slot=15, after=11)
    verdict = verify(made, engine, model, steps=3)
    assert verdict.worst_logits < 1e-5
    assert verdict.cases[0].cache_at == "present.1.value, row 0, slot 15"
    assert verdict.problems[0].startswith("cache entries differ by ")


def test_another_backend_says_that_it_shows_no_layers(four):
    made, model = four
    engine = Corrupted(OnnxRuntimeEngine(made, CAPACITY, threads=1), tensor=0, slot=0, after=8)
    engine.name = "tensorrt"
    verdict = verify(made, engine, model, steps=1)
    assert verdict.divergence.first == ""
    assert "first diverging layer: not available for this backend (tensorrt)" in verdict.problems[-1]


def test_a_graph_that_names_nothing_between_its_blocks_says_so(four, tmp_path):
    made, model = four
    copy = replace(made, folder=tmp_path)
    proto = onnx.load(made.graph(CAPACITY), load_external_data=False)
    for node in proto.graph.node:
        node.input[:] = ["between" if name == "x.2" else name for name in node.input]
        node.output[:] = ["between" if name == "x.2" else name for name in node.output]
    onnx.save_model(proto, copy.graph(CAPACITY))
    one = cases(made.config, CAPACITY)[0].prefill(256)
    engine = OnnxRuntimeEngine(made, CAPACITY, threads=1)
    found = first_divergence(copy, engine, model, [one], Tolerance(1e-4))
    assert str(found).startswith("not available: ")
    assert "has no value x.2 between its blocks" in str(found)
