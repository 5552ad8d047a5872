"""Models with an encoder: both graphs compute what PyTorch does, and cross keys and values are made once a source.

A model of each structure, in the weights of a transformers model: biases by distance (t5), learned positions without a
final norm (bart), sound (whisper), types and a transform before the head (bert), rotary positions (eurobert).
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason='needs the extra: pip install "archcalc[export]"')
pytest.importorskip("transformers", reason="transformers is not installed")

from archcalc.config import MixtureOfExperts, RopeScaling, Stack
from archcalc.cost import bound, cache_elements, parameters, passes, total
from archcalc.errors import ArchcalcError, ConfigError
from export.build import MANIFEST, build, open_build
from export.cli import main
from export.encoder import ENCODER, check_cross_once
from export.expressible import check_exportable
from export.files import ExportError
from export.generate_encoder import greedy_targets
from export.graph import WEIGHTS
from export.graph_count import count_flops, count_parameters
from export.runtimes import engines
from export.verify import verify
from models.generate import greedy
from models.parity.checkpoints import tiny
from models.parity.compare import Pair

CAPACITY = 40
TARGETS, ALONE = ("t5", "bart", "whisper"), ("bert", "eurobert")


class Made:
    """A parity family's tiny model, its build and the engine of it."""

    def __init__(self, name: str, folder, precision: str = "fp32"):
        self.pair = Pair(*tiny(name))
        self.model, self.config = self.pair.ours, self.pair.config
        capacities = (CAPACITY,) if self.config.decoder else None
        self.build = build(self.config, folder, precision, capacities, self.model, {"kind": "random", "seed": 0})
        self.engine = self.engine_of(self.build)

    def engine_of(self, opened):
        return engines(opened, "onnxruntime")(CAPACITY if self.config.decoder else None)

    @property
    def graphs(self):
        return [self.build.encoder, *map(self.build.graph, self.build.capacities)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each family's build, made when it is first asked for."""
    found = {}

    def of(name: str, precision: str = "fp32") -> Made:
        if (name, precision) not in found:
            found[name, precision] = Made(name, tmp_path_factory.mktemp(name) / "build", precision)
        return found[name, precision]

    return of


@pytest.mark.parametrize("name", [*TARGETS, *ALONE])
def test_fp32_agrees_with_pytorch(made, name):
    """One row and three, unequal sources and targets, padding in front and behind, 32 greedy steps."""
    one = made(name)
    verdict = verify(one.build, one.engine, one.model)
    assert verdict.problems == []
    assert 0 < verdict.worst_logits < 1e-4
    if one.config.decoder:
        assert 0 < verdict.worst_cache < 1e-4
        assert verdict.tokens == verdict.tokens_agreed > 3 * 32


@pytest.mark.parametrize("name", ["t5", "bert"])
def test_fp16_agrees_with_pytorch(made, name):
    one = made(name, "fp16")
    verdict = verify(one.build, one.engine, one.model)
    assert verdict.problems == []
    assert verdict.worst_logits > 1e-4  # it is another format


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_targets_are_those_of_pytorch(made, name):
    one = made(name)
    targets = greedy_targets(one.engine, one.pair.source, 32)
    assert targets == greedy(one.model, one.pair.source, 32)
    stopped = greedy_targets(one.engine, one.pair.source, 32, eos=targets[0][3])
    assert stopped == greedy(one.model, one.pair.source, 32, targets[0][3])
    assert targets[0][: len(stopped[0])] == stopped[0] != targets[0]


def test_padding_of_a_source_changes_nothing(made):
    engine = made("bart").engine
    ids = np.array([[5, 6, 7, 8]])
    padded = np.array([[9, 9, 5, 6, 7, 8, 9]])
    mask = padded != 9
    for name, alone in engine.encode(ids, np.ones((1, 4), bool)).items():
        if name != "source_mask":
            np.testing.assert_allclose(engine.encode(padded, mask)[name][:, :, 2:6], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper", "bert"])
def test_counts_of_both_graphs_are_those_of_the_calculator(made, name):
    """Parameters, and the FLOPs of the pass that reads a source and of one that decodes a token."""
    one = made(name)
    buffer = one.config.vocab_size if one.config.head.buffer_bias else 0  # stored, but no parameter
    assert count_parameters(*one.graphs) == parameters(one.config) + buffer
    assert (one.build.folder / WEIGHTS).stat().st_size == 4 * (parameters(one.config) + buffer)
    batch, source = 2, 7
    sizes = {"batch": batch, "source_tokens": source, "tokens": 1, "logit_positions": 1}
    runs = passes(one.config, batch, source, CAPACITY)
    derived = [total(run, dense=True).flops for run in runs]
    assert [count_flops(path, sizes) for path in one.graphs] == derived


@pytest.mark.parametrize("name", TARGETS)
def test_the_manifest_describes_both_graphs(made, name):
    one = made(name)
    manifest = json.loads((one.build.folder / MANIFEST).read_text())
    assert set(manifest["files"]) == {WEIGHTS, ENCODER, f"model-{CAPACITY}.onnx"}
    assert manifest["operators"]["Attention"] == 2 * len(one.config.decoder.layers)
    assert manifest["encoder"]["operators"]["Attention"] == len(one.config.encoder.layers)
    kept = cache_elements(bound(one.config)[1], 1, 1, 1).cross
    assert manifest["predicted"]["cross_bytes_per_source_token"] == 4 * kept
    assert manifest["encoder"]["shapes"]["cross.0.key"] == manifest["shapes"]["cross.0.key"]
    heard = one.pair.source.numpy() if name == "whisper" else np.ones((3, 22), int)
    source = one.engine.encode(heard, np.ones((3, 22), bool))
    held = sum(array.nbytes for key, array in source.items() if key != "source_mask")
    assert held == 3 * 22 * 4 * kept


def _loaded(one: Made):
    return [onnx.load(path, load_external_data=False) for path in one.graphs]


def test_a_weight_of_cross_keys_is_in_the_encoders_graph_alone(made):
    for name in TARGETS:
        encoder, decoder = _loaded(made(name))
        count = len(made(name).config.decoder.layers)
        for part in ("k_proj", "v_proj"):
            names = [f"decoder.layers.{i}.cross_attn.{part}.weight" for i in range(count)]
            held = [[t.name for t in graph.graph.initializer if t.name in names] for graph in (encoder, decoder)]
            assert held == [names, []]
        check_cross_once(made(name).config, encoder, [decoder])


def _makes_again(encoder, decoder):
    """The decoder's graph makes the keys and values of its first layer from encoder states."""
    decoder.graph.initializer.append(next(t for t in encoder.graph.initializer if "cross_attn.k_proj.weight" in t.name))


def _makes_again_renamed(encoder, decoder):
    _makes_again(encoder, decoder)
    decoder.graph.initializer[-1].name = "another name"


def _makes_twice(encoder, decoder):
    encoder.graph.node.append(encoder.graph.node[-1])


def _makes_nothing(encoder, decoder):
    del encoder.graph.node[-1]


def _reads_nothing(encoder, decoder):
    block = next(node for node in decoder.graph.node if "cross.1.value" in node.input)
    block.input[list(block.input).index("cross.1.value")] = "cross.0.value"


BROKEN = {
    _makes_again: "k_proj.weight is in a decoder's graph",
    _makes_again_renamed: "another name is in a decoder's graph",
    _makes_twice: "v_proj.weight is read 2 times",
    _makes_nothing: "v_proj.weight is not in encoder.onnx",
    _reads_nothing: "cross.1.value is read 0 times by a decoder",
}


@pytest.mark.parametrize("break_it", BROKEN)
def test_a_graph_that_makes_cross_keys_another_time_is_refused(made, break_it):
    encoder, decoder = _loaded(made("t5"))
    break_it(encoder, decoder)
    with pytest.raises(ExportError, match=BROKEN[break_it]):
        check_cross_once(made("t5").config, encoder, [decoder])


def _opened(one: Made, folder, weights=None):
    shutil.copytree(one.build.folder, folder)
    opened = open_build(folder)
    if weights:
        stored = np.memmap(folder / WEIGHTS, np.float32, "r+")
        weights(stored)
        stored.flush()
    return opened


@pytest.mark.parametrize("name", ["bart", "bert"])
def test_a_changed_weight_fails(made, name, tmp_path):
    one = made(name)
    weight = next(t for t in _loaded(one)[0].graph.initializer if "down_proj.weight" in t.name)
    start = int({entry.key: entry.value for entry in weight.external_data}["offset"]) // 4

    def change(stored):
        stored[start] += 2

    verdict = verify(one.build, one.engine_of(_opened(one, tmp_path / "copy", change)), one.model, steps=1)
    assert not verdict.passed


class Swapped:
    """An engine whose encoder gives what `change` makes of its keys and values."""

    def __init__(self, engine, change):
        self._engine, self._change = engine, change

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def encode(self, source, mask):
        return self._change(self._engine.encode(source, mask))


def _swap_layers(found):
    return found | {"cross.0.key": found["cross.1.key"], "cross.1.key": found["cross.0.key"]}


def _no_mask(found):
    return found | {"source_mask": np.ones_like(found["source_mask"])}


def _swap_rows(found):
    return found | {"cross.1.value": found["cross.1.value"][::-1].copy()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_swap_layers, r"cache entries differ .* cross\.[01]\.key, row"),
        (_swap_rows, r"cache entries differ .* cross\.1\.value, row"),
        (_no_mask, "logits differ"),
    ],
)
def test_wrong_keys_of_a_source_fail(made, change, says):
    one = made("bart")
    verdict = verify(one.build, Swapped(one.engine, change), one.model, steps=2)
    assert any(re.search(says, problem) for problem in verdict.problems), verdict.problems


def test_an_encoder_without_its_mask_fails(made):
    one = made("bert")

    class Unmasked(Swapped):
        def run(self, source, mask, types):
            return self._engine.run(source, np.ones_like(mask), types)

    assert "logits differ" in verify(one.build, Unmasked(one.engine, None), one.model).problems[0]


def test_sources_that_the_model_does_not_know_are_refused(made):
    bart, bert, whisper = (made(name).engine for name in ("bart", "bert", "whisper"))
    mask = np.ones((1, 3), bool)
    with pytest.raises(ConfigError, match="input_ids: not all from 0 to 82"):
        bart.encode(np.array([[5, 83, 6]]), mask)
    with pytest.raises(ConfigError, match=r"input_ids: shape \[1, 2\], not \[1, 3\]"):
        bart.encode(np.array([[5, 6]]), mask)
    with pytest.raises(ConfigError, match="65 tokens, the model has positions for 64"):
        bart.encode(np.ones((1, 65), int), np.ones((1, 65), bool))
    with pytest.raises(ConfigError, match="token_type_ids: not all from 0 to 2"):
        bert.run(np.array([[5, 6, 7]]), mask, np.array([[0, 3, 0]]))
    with pytest.raises(ConfigError, match=r"input_features: shape \[1, 6, 10\], not \[1, 44, 10\]"):
        whisper.encode(np.zeros((1, 6, 10), np.float32), mask)
    with pytest.raises(ConfigError, match="batch=2: there are 1 sources"):
        bart.bind(2, 1, 1, bart.new_cache(2), bart.encode(np.array([[5, 6, 7]]), mask))
    with pytest.raises(ConfigError, match="every source needs a token"):
        greedy_targets(bart, [[5], []], 3)
    with pytest.raises(ArchcalcError, match="decoder_start_token_id=99"):
        greedy_targets(bart, [[5]], 3, start_id=99)


def test_a_changed_encoder_graph_is_refused(made, tmp_path):
    folder = _opened(made("bert"), tmp_path / "copy").folder
    (folder / ENCODER).write_bytes((folder / ENCODER).read_bytes()[:-1])
    with pytest.raises(ExportError, match=r"encoder\.onnx: not the file that was built"):
        open_build(folder)


def test_what_an_encoder_has_no_use_for_is_refused(made, tmp_path):
    bert = made("bert")
    with pytest.raises(ExportError, match=r"capacity=8: .* is an encoder and keeps no cache"):
        build(bert.config, tmp_path / "a", "fp32", (8,), bert.model, {"kind": "random", "seed": 0})
    assert list(tmp_path.iterdir()) == []


def test_what_an_encoder_cannot_have_yet_is_named(made):
    config = made("eurobert").config
    block = config.encoder.layers[0]
    scaled = replace(block.self_attn.rotary, rope_scaling=RopeScaling("longrope", 2.0))
    refused = {
        "longrope": replace(block, self_attn=replace(block.self_attn, rotary=scaled)),
        "an encoder's mixture of experts": replace(block, mlp=MixtureOfExperts(block.mlp, 4, 2)),
    }
    for words, changed in refused.items():
        with pytest.raises(ExportError, match=words):
            check_exportable(replace(config, encoder=Stack((changed,), None)))


def test_tensorrt_parses_both_graphs_and_keeps_attention_whole(made):
    trt = pytest.importorskip("tensorrt_rtx")
    one, log = made("t5", "fp16"), trt.Logger(trt.Logger.ERROR)
    counts = []
    for path in one.graphs:
        network = trt.Builder(log).create_network(0)
        parser = trt.OnnxParser(network, log)
        assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
        kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
        counts.append([kinds.count(kind) for kind in ("ATTENTION_INPUT", "KV_CACHE_UPDATE", "SOFTMAX")])
    reads, writes = len(one.config.encoder.layers), len(one.config.decoder.layers)
    assert counts == [[reads, 0, 0], [2 * writes, 2 * writes, 0]]


def test_the_command_line_builds_and_verifies(tmp_path, capsys):
    folder = str(tmp_path / "build")
    sizes = ["hidden_size=32", "num_attention_heads=4", "intermediate_size=40", "num_hidden_layers=2", "vocab_size=73"]
    given = [option for size in sizes for option in ("--set", size)] + ["--weights", "random", "--out", folder]
    assert main(["build", "--preset", "bert-base", *given]) == 0
    told = capsys.readouterr().out
    assert "no cache" in told
    assert "encoder.onnx: " in told
    assert main(["verify", "--build", folder]) == 0
    assert f"{folder}: logits differ by" in capsys.readouterr().out
