"""Engines of models with an encoder: two plans, and what a source is turned into stays on the GPU."""

import json
import shutil

import numpy as np
import pytest
import tensorrt_rtx
from engines import ADA, BERT, CAPACITY, T5, CpuContext, CpuStream

from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from export.bench import Point, prepare
from export.build import build, open_build
from export.compare import exact
from export.engine_from_onnx import EngineInfo, build_engine, engine_capacities
from export.files import ExportError
from export.generate_encoder import greedy_targets
from export.reference import reference
from export.runtimes import engines, tensorrt_
from export.runtimes.tensorrt_encoder import TensorRTEncoder, TensorRTEncoderDecoder
from export.runtimes.tensorrt_session import Session, read_engine
from export.verify import verify

QUICK = {"max_batch": 4, "builder_optimization_level": 0}
SOURCES = [[5, 9, 3, 30, 7], [8], [11, 2, 40]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Builds in fp16, made once: of an encoder-decoder and of an encoder alone."""
    folder = tmp_path_factory.mktemp("encoders")
    t5, bert = config_from_keys(T5, name="t5"), config_from_keys(BERT, name="bert")
    return {
        "t5": build(t5, folder / "t5", "fp16", (CAPACITY,)),
        "bert": build(bert, folder / "bert", "fp16"),
    }


@pytest.fixture(scope="module")
def plans(made):
    """Each plan of each build."""
    return {
        (name, capacity): build_engine(opened, capacity, max_prompt=8, max_source=48, **QUICK)
        for name, opened in made.items()
        for capacity in engine_capacities(opened)
    }


def test_both_plans_are_built_with_whole_attention(made, plans):
    assert list(plans) == [("t5", None), ("t5", CAPACITY), ("bert", None)]
    counted = ("KV_CACHE_UPDATE", "ATTENTION_INPUT", "ATTENTION_OUTPUT", "NORMALIZATION", "SOFTMAX")
    found = {plan: [info.facts["layers"].get(kind, 0) for kind in counted] for plan, info in plans.items()}
    assert found == {
        ("t5", None): [0, 3, 3, 0, 0],
        ("t5", CAPACITY): [4, 4, 4, 0, 0],  # two layers, to themselves and to the source
        ("bert", None): [0, 2, 2, 6, 0],  # two norms a layer, of the embedding and in the head
    }
    sources = {"batch": [1, 1, 4], "source_tokens": [1, 48, 48]}
    for (name, capacity), info in plans.items():
        assert info.path.name == f"engine-{capacity or 'encoder'}-sm_89.plan"
        graph = f"model-{capacity}.onnx" if capacity else "encoder.onnx"
        assert info.facts["graph_sha256"] == made[name].manifest["files"][graph]["sha256"]
        assert info.facts["capacity"] == capacity
        assert sources.items() <= next(iter(info.facts["profiles"].values())).items()
        assert read_engine(made[name], capacity, tensorrt_rtx, ADA)[1] == info
    assert list(plans["t5", None].facts["profiles"]) == ["source"]
    assert list(plans["t5", CAPACITY].facts["profiles"]) == ["decode", "prefill"]


def test_shapes_of_a_decoders_inputs_are_both_plans(made, tmp_path):
    shapes = {"maxShapes": {"input_ids": (3, 4), "source_mask": (3, 20)}}
    shutil.copytree(made["t5"].folder, tmp_path / "copy")  # the other tests' plans stay as they are
    copy = open_build(tmp_path / "copy")
    found = [build_engine(copy, capacity, shapes=shapes, **QUICK).facts["profiles"] for capacity in (None, CAPACITY)]
    assert found[0] == {"source": {"batch": [1, 1, 3], "source_tokens": [1, 20, 20]}}
    assert found[1]["prefill"]["tokens"] == [1, 4, 4]
    assert found[1]["prefill"]["source_tokens"] == [1, 20, 20]


def test_what_cannot_be_built(made, builds):
    with pytest.raises(ExportError, match="source_tokens=65: the model has positions for 64; give at most that many"):
        build_engine(made["bert"], None, max_source=65)
    with pytest.raises(ExportError, match="capacity=None: not in the build; use one of 32"):
        build_engine(builds["llama-fp16"], None)
    with pytest.raises(ExportError, match="capacity=32: not in the build; use one of None"):
        build_engine(made["bert"], CAPACITY)


def ranges(capacity):
    batch, source = {"batch": [1, 1, 3]}, {"source_tokens": [1, 8, 24]}
    if capacity is None:
        return {"source": batch | source}
    steps = {"decode": 1, "prefill": 8}
    return {
        name: batch | source | {"tokens": [1, most, most], "logit_positions": [1, 1, most]}
        for name, most in steps.items()
    }


@pytest.fixture
def on_cpu(made, monkeypatch):
    """A function from a build's name to (engine of TensorRT, of ONNX Runtime), which computes for both."""
    theirs = {}

    def opened(build, capacity, device, cuda_graph):
        engine = theirs[build.config.name]
        encoder = getattr(engine, "encoder", engine)
        info = EngineInfo(build.folder / "x.plan", {"profiles": ranges(capacity)})
        return Session(info, CpuContext((engine if capacity else encoder).session), CpuStream())

    monkeypatch.setattr(tensorrt_, "gpu", lambda: ADA)
    monkeypatch.setattr(tensorrt_, "open_session", opened)

    def of(name):
        capacity = CAPACITY if made[name].capacities else None
        theirs[name] = engines(made[name], "onnxruntime")(capacity)
        return engines(made[name], "tensorrt")(capacity), theirs[name]

    return of


def test_a_source_is_read_once_and_its_keys_are_bound(on_cpu):
    """Logits, caches and keys of the sources are bit for bit those of the runtime behind the context."""
    engine, other = on_cpu("t5")
    assert type(engine) is TensorRTEncoderDecoder
    ids, mask = np.random.default_rng(0).integers(0, 79, (2, 7)), np.arange(7) < np.array([[7], [4]])
    ours, theirs = engine.encode(ids, mask), other.encode(ids, mask)
    assert all(tensor.device.type == CpuStream.device for tensor in ours.values())
    for name, array in other.source_arrays(theirs).items():
        assert array.dtype == np.float32 and np.abs(array).max() > 0
        np.testing.assert_array_equal(engine.source_arrays(ours)[name], array)
    caches, start = (engine.new_cache(2), other.new_cache(2)), 0
    for tokens in (4, 1, 1, 1):
        step = np.random.default_rng(tokens).integers(0, 79, (2, tokens))
        positions = np.tile(np.arange(start, start + tokens), (2, 1))
        arguments = step, positions, positions[:, 0], np.full((2, 1), tokens - 1)
        expected = other.run(*arguments, caches[1], theirs)
        np.testing.assert_array_equal(engine.run(*arguments, caches[0], ours), expected)
        start += tokens
    for kept, expected in zip(engine.cache_arrays(caches[0]), other.cache_arrays(caches[1]), strict=True):
        np.testing.assert_array_equal(kept, expected)
    assert engine.session.context.binds == 2  # a prompt, and one for all tokens after it
    assert engine.encoder.session.context.binds == 1


def test_another_source_is_bound_again(on_cpu):
    engine, other = on_cpu("t5")
    targets = [greedy_targets(engine, sources, 9) for sources in (SOURCES, SOURCES[::-1])]
    assert targets == [greedy_targets(other, sources, 9) for sources in (SOURCES, SOURCES[::-1])]
    cache, last = engine.new_cache(1), (np.array([[3]]), np.array([[0]]), np.array([0]), np.array([[0]]))
    first, second = (engine.encode(np.array([ids]), np.ones((1, 3), bool)) for ids in ([5, 6, 7], [60, 2, 9]))
    assert np.abs(engine.run(*last, cache, first) - engine.run(*last, cache, second)).max() > 0


def test_verify_drives_both_plans(on_cpu, made):
    engine, _ = on_cpu("bert")
    assert type(engine) is TensorRTEncoder
    engine.session.info.facts["profiles"]["source"] |= {"batch": [1, 1, 8], "source_tokens": [1, 8, 64]}
    assert verify(made["bert"], engine, reference(made["bert"].config, "random")[0]).problems == []
    engine, _ = on_cpu("t5")
    for session in (engine.session, engine.encoder.session):
        for profile in session.info.facts["profiles"].values():
            profile |= {"batch": [1, 1, 8], "source_tokens": [1, 8, 512]}
            profile |= {axis: [1, 1, CAPACITY] for axis in ("tokens", "logit_positions") if axis in profile}
    verdict = verify(made["t5"], engine, reference(made["t5"].config, "random")[0], steps=4)
    assert verdict.problems == []
    assert verdict.worst_cache > 0


def test_timed_passes_run_both_plans(on_cpu, made):
    """`bench` and `compare` up to the driver: each pass runs on its own plan, at its own sizes, bound once."""
    engine, _ = on_cpu("t5")
    points = [Point(2, 7, None), Point(2, 4, CAPACITY, 5), Point(3, 1, CAPACITY, 9)]
    encode, prefill, decode = prepare(made["t5"], lambda capacity: engine, points)
    for run, session, ids, source in (
        (encode, engine.encoder.session, (2, 7), (2, 7)),
        (prefill, engine.session, (2, 4), (2, 5)),
        (decode, engine.session, (3, 1), (3, 9)),
    ):
        before = session.context.binds
        run()
        run()
        assert session.context.binds == before + 1
        assert (session.context.shapes["input_ids"], session.context.shapes["source_mask"]) == (ids, source)
    rows = exact(made["t5"], engine)
    assert [row.quantity for row in rows if row.quantity.endswith("bytes")] == [
        "KV-cache bytes", "cross-KV bytes", "weight-file bytes",
    ]  # fmt: skip
    assert all(row.passed for row in rows)


def test_an_encoder_alone_is_timed(on_cpu, made):
    engine, _ = on_cpu("bert")
    (run,) = prepare(made["bert"], lambda capacity: engine, [Point(3, 11, None)])
    run()
    assert engine.session.context.shapes["input_ids"] == (3, 11)
    assert engine.seconds == 0.25
    with pytest.raises(ExportError, match=r"source_tokens=25: the engine was built for 1 to 24 \(source\)"):
        prepare(made["bert"], lambda capacity: engine, [Point(1, 25, None)])
    assert all(row.passed for row in exact(made["bert"], engine))


def test_what_cannot_be_run(on_cpu):
    engine, _ = on_cpu("t5")
    cache, source = engine.new_cache(2), engine.encode(np.ones((1, 3), int), np.ones((1, 3), bool))
    pair = np.zeros((2, 1), int), np.zeros((2, 1), int), np.zeros(2, int), np.zeros((2, 1), int)
    with pytest.raises(ExportError, match=r"source_tokens=25: the engine was built for 1 to 24 \(source\)"):
        engine.encode(np.ones((1, 25), int), np.ones((1, 25), bool))
    with pytest.raises(ExportError, match=r"batch=4: the engine was built for 1 to 3 \(source\)"):
        engine.encode(np.ones((4, 3), int), np.ones((4, 3), bool))
    with pytest.raises(ConfigError, match="input_ids: not all from 0 to 78"):
        engine.encode(np.full((1, 3), 79), np.ones((1, 3), bool))
    for refused in (lambda: engine.run(*pair, cache, source), lambda: engine.bind(2, 1, 1, cache, source)):
        with pytest.raises(ConfigError, match="batch=2: there are 1 sources; give one a target"):
            refused()
    two = engine.encode(np.ones((2, 3), int), np.ones((2, 3), bool))
    engine.session.info.facts["profiles"]["decode"]["source_tokens"] = [4, 8, 24]
    with pytest.raises(ExportError, match=r"source_tokens=3: the engine was built for 4 to 24 \(decode\)"):
        engine.run(*pair, cache, two)


def test_the_sidecar_is_of_its_own_graph(made, plans):
    """The encoder's plan is never opened as the decoder's."""
    opened, info = made["t5"], plans["t5", CAPACITY]
    sidecar = info.path.with_suffix(".json")
    before = sidecar.read_text()
    sidecar.write_text(json.dumps(plans["t5", None].facts))
    with pytest.raises(ExportError, match="built for capacity=None, here it is 32"):
        read_engine(opened, CAPACITY, tensorrt_rtx, ADA)
    sidecar.write_text(before)
