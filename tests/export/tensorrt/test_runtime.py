"""Running an engine, tested up to the driver with a context that computes on the CPU; on a GPU where there is one."""

import contextlib
import ctypes
import json

import numpy as np
import pytest
import torch
from engines import ADA, CAPACITY, KINDS

from archcalc.errors import ConfigError
from export import engine_from_onnx
from export.engine_from_onnx import build_engine, profiles
from export.files import ExportError
from export.runtimes import tensorrt_
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.runtimes.tensorrt_ import Session, TensorRTEngine


def test_running_without_a_gpu_says_so(built, monkeypatch):
    with pytest.raises(ExportError, match="no NVIDIA driver: build works here, running needs a GPU; "):
        TensorRTEngine(built[0], CAPACITY)
    monkeypatch.setattr(tensorrt_, "gpu", lambda: ADA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExportError, match=r"torch .*: cannot use some Ada; install"):
        TensorRTEngine(built[0], CAPACITY)


class CpuStream:
    device, handle = "cpu", 7

    def current(self):
        return contextlib.nullcontext()

    def timed(self, enqueue):
        return enqueue(self.handle), 0.25


class CpuContext:
    """An execution context that finds its tensors by address, as TensorRT does, and computes with ONNX Runtime."""

    def __init__(self, opened):
        self.runtime = OnnxRuntimeEngine(opened, CAPACITY, threads=1).session
        self.active_optimization_profile, self.shapes, self.addresses, self.binds = 0, {}, {}, 0

    def set_optimization_profile_async(self, index, stream):
        assert stream == CpuStream.handle
        self.active_optimization_profile, self.shapes = index, {}

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return len(shape) > 0

    def set_tensor_address(self, name, address):
        self.binds += name == "logits"
        self.addresses[name] = address

    def _at(self, name, shape, dtype):
        raw = (ctypes.c_byte * (int(np.prod(shape)) * np.dtype(dtype).itemsize)).from_address(self.addresses[name])
        return np.frombuffer(raw, dtype).reshape(shape)

    def execute_async_v3(self, stream):
        assert (self.active_optimization_profile == 0) == (self.shapes["input_ids"][1] == 1)
        kinds = {"tensor(int64)": np.int64, "tensor(float)": np.float32}
        named = {i.name: kinds[i.type] for i in self.runtime.get_inputs()}
        inputs = {name: self._at(name, self.shapes[name], kind).copy() for name, kind in named.items()}
        for output, value in zip(self.runtime.get_outputs(), self.runtime.run(None, inputs), strict=True):
            if output.name != "logits":
                assert self.addresses[output.name] == self.addresses[output.name.replace("present", "past_key_values")]
            self._at(output.name, value.shape, value.dtype)[...] = value
        return True


@pytest.fixture
def on_cpu(builds):
    """(engine, context, ONNX Runtime over the same graph)."""
    opened = builds["llama-fp32"]
    ranges = json.loads(json.dumps(dict(zip(("decode", "prefill"), profiles(CAPACITY, 2, 8), strict=True))))
    context = CpuContext(opened)
    info = engine_from_onnx.EngineInfo(opened.folder / "x.plan", {"profiles": ranges})
    session = Session(info, context, CpuStream())
    return TensorRTEngine(opened, CAPACITY, session), context, OnnxRuntimeEngine(opened, CAPACITY, threads=1)


PASSES = ((5, [[4, 0], [1, 4]]), (1, [[0], [0]]), (1, [[0], [0]]), (4, [[3], [2]]))  # tokens, logit_indices


def passes(engine, other):
    """Run both through a prompt, two tokens and another prompt; yields each pass's logits, then the caches'."""
    ours, theirs, starts = engine.new_cache(2), other.new_cache(2), np.array([0, 3])
    assert engine.cache_bytes(ours) == other.cache_bytes(theirs) > 0
    for tokens, wanted in PASSES:
        ids = np.random.default_rng(tokens).integers(0, 61, (2, tokens))
        arguments = ids, starts[:, None] + np.arange(tokens), starts, np.array(wanted)
        yield engine.run(*arguments, ours), other.run(*arguments, theirs)
        starts = starts + tokens
    yield from zip(engine.cache_arrays(ours), other.cache_arrays(theirs), strict=True)


def test_run_binds_every_tensor(on_cpu):
    engine, _, other = on_cpu
    pairs = list(passes(engine, other))
    assert [ours.shape for ours, _ in pairs] == [(2, 2, 61), (2, 1, 61), (2, 1, 61), (2, 1, 61)] + [(2, 2, 32, 16)] * 4
    for ours, theirs in pairs:
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert engine.seconds == 0.25


def test_prepared_passes_take_turns(on_cpu):
    engine, context, _ = on_cpu
    decode, prefill = engine.prepare(2, 1, 9), engine.prepare(1, 8, 0)
    for run, binds in ((decode, 1), (decode, 1), (prefill, 2), (prefill, 2), (decode, 3)):
        assert run() is None
        assert context.binds == binds
    assert context.shapes["input_ids"] == (2, 1)
    assert context.active_optimization_profile == 0
    positions = context._at("position_ids", (2, 1), np.int64)
    assert positions.tolist() == [[9], [9]]
    assert context._at("write_indices", (2,), np.int64).tolist() == [9, 9]
    prefill()
    assert context._at("position_ids", (1, 8), np.int64).tolist() == [list(range(8))]
    assert context._at("logit_indices", (1, 1), np.int64).tolist() == [[7]]


def test_run_refuses_what_the_engine_was_not_built_for(on_cpu, monkeypatch):
    engine, context, _ = on_cpu
    with pytest.raises(ExportError, match="batch=3: the engine was built for 1 to 2"):
        engine.prepare(3, 1, 0)
    with pytest.raises(ExportError, match=r"tokens=9: the engine was built for 1 to 8 \(prefill\)"):
        engine.prepare(1, 9, 0)
    with pytest.raises(ConfigError, match="context=33"):
        engine.prepare(1, 8, 25)
    monkeypatch.setattr(context, "execute_async_v3", lambda stream: False)
    with pytest.raises(ExportError, match="the pass failed on the GPU"):
        engine.prepare(1, 8, 0)()
    monkeypatch.setattr(context, "set_input_shape", lambda name, shape: False)
    with pytest.raises(ExportError, match=r"refuses input_ids of shape \(1, 4\)"):
        engine.prepare(1, 4, 0)()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch that can use it")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_as_onnx_runtime(fresh, kind):
    opened = fresh(kind)
    build_engine(opened, CAPACITY, max_prompt=8)
    engine, other = TensorRTEngine(opened, CAPACITY), OnnxRuntimeEngine(opened, CAPACITY)
    for ours, theirs in passes(engine, other):
        assert np.abs(ours - theirs).max() <= opened.precision.tolerance * np.abs(theirs).max()
    engine.prepare(1, 1, 4)()
    assert engine.seconds > 0
