"""On a GPU, where there is one: an engine computes what PyTorch does, however it is launched."""

import json

import numpy as np
import pytest
import torch
from engines import BERT, CAPACITY, KINDS, T5

from archcalc.hf import config_from_keys
from export.bench import Point, bench
from export.build import build
from export.engine_from_onnx import build_engine, engine_capacities
from export.files import ExportError
from export.gpu_state import gpu_state
from export.reference import reference
from export.runtimes import engines
from export.runtimes.tensorrt_ import TensorRTEngine, this_gpu
from export.verify import verify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch that can use it"),
]


@pytest.fixture
def made(fresh):
    opened = fresh()
    return opened, build_engine(opened, CAPACITY, max_batch=8)


def passes(engine):
    """Logits of a prompt of two rows and of four tokens after it, then the cache."""
    cache, random, found = engine.new_cache(2), np.random.default_rng(0), []
    for start, tokens in ((0, 5), (5, 1), (6, 1), (7, 1), (8, 1)):
        ids, positions = random.integers(0, 61, (2, tokens)), np.tile(np.arange(start, start + tokens), (2, 1))
        found.append(engine.run(ids, positions, positions[:, 0], np.full((2, 1), tokens - 1), cache))
    return [*found, *engine.cache_arrays(cache)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_computes_what_pytorch_does(fresh, kind):
    opened = fresh(kind)
    build_engine(opened, CAPACITY, max_batch=8)
    verdict = verify(opened, TensorRTEngine(opened, CAPACITY), reference(opened.config, "random")[0])
    assert verdict.problems == []


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("keys", [T5, BERT], ids=["t5", "bert"])
def test_engines_with_an_encoder_compute_what_pytorch_does(tmp_path, keys, precision):
    config = config_from_keys(keys, name=keys["model_type"])
    opened = build(config, tmp_path / "build", precision, (CAPACITY,) if config.decoder else None)
    for capacity in engine_capacities(opened):
        build_engine(opened, capacity, max_batch=8)
    engine = engines(opened, "tensorrt")(CAPACITY if config.decoder else None)
    assert verify(opened, engine, reference(config, "random")[0]).problems == []


def test_a_cuda_graph_computes_the_same(made):
    graph = passes(TensorRTEngine(made[0], CAPACITY, cuda_graph=True))
    plain = passes(TensorRTEngine(made[0], CAPACITY, cuda_graph=False))
    for ours, theirs in zip(graph, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_percentiles_are_in_order(made):
    engine = TensorRTEngine(made[0], CAPACITY)
    (timing,) = bench(made[0], lambda context: engine, [Point(1, 1, CAPACITY)], rounds=3)
    assert 0 < timing.quantile(0.5) <= timing.quantile(0.9) <= timing.quantile(0.99)
    assert 0 < engine.seconds <= timing.quantile(1)


def test_every_layer_has_a_time(made):
    times = TensorRTEngine(made[0], CAPACITY, cuda_graph=False).layer_times(1, 1, 4)
    assert times and all(seconds >= 0 for seconds in times.values())
    assert sum(times.values()) > 0


def test_another_gpus_engine_is_refused(made):
    opened, info = made
    info.path.with_suffix(".json").write_text(json.dumps(info.facts | {"compute_capability": "sm_00"}))
    with pytest.raises(ExportError, match="built for compute_capability='sm_00', here it is"):
        TensorRTEngine(opened, CAPACITY)


def test_a_stripped_plan_computes_the_same(made):
    whole = passes(TensorRTEngine(made[0], CAPACITY))
    stripped = build_engine(made[0], CAPACITY, max_batch=8, strip_weights=True)
    assert stripped.facts["plan_bytes"] < made[1].facts["plan_bytes"]
    for ours, theirs in zip(passes(TensorRTEngine(made[0], CAPACITY)), whole, strict=True):
        assert np.abs(ours - theirs).max() <= made[0].precision.tolerance * np.abs(theirs).max()


def test_the_state_is_of_this_gpu():
    assert gpu_state(this_gpu().uuid)["name"] == this_gpu().name
