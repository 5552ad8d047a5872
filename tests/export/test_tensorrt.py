"""Engines are built without a GPU; running is tested up to the driver, with a context that computes on the CPU."""

import contextlib
import ctypes
import json
import shutil
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from export import engine_from_onnx
from export.build import build, open_build
from export.engine_from_onnx import Gpu, build_engine, check_layers, expected_layers, load_tensorrt, profiles
from export.files import ExportError, sha256
from export.runtimes import tensorrt_
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.runtimes.tensorrt_ import Session, TensorRTEngine, read_engine

trt = pytest.importorskip("tensorrt_rtx", reason='needs TensorRT-RTX: pip install "archcalc[trt-rtx]"')

CAPACITY = 32
ADA = Gpu("some Ada", "sm_89")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "hidden_act": "silu", "vocab_size": 61,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 61,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
KINDS = {"llama-fp16": (LLAMA, "fp16"), "llama-fp32": (LLAMA, "fp32"), "gpt2-fp16": (GPT2, "fp16")}
FUSED = {  # cache updates, attentions, rotary embeddings: counted by hand from the layers above
    "llama-fp16": (4, 2, 4),
    "llama-fp32": (4, 2, 4),
    "gpt2-fp16": (6, 3, 0),
}


@pytest.fixture(autouse=True)
def _no_gpu(request, monkeypatch):
    """The same tests on every machine: as if there were no GPU."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(engine_from_onnx, "gpu", lambda: None)
        monkeypatch.setattr(tensorrt_, "gpu", lambda: None)


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("builds")
    return {
        kind: build(config_from_keys(keys, name=kind), folder / kind, precision, (CAPACITY,))
        for kind, (keys, precision) in KINDS.items()
    }


@pytest.fixture
def fresh(builds, tmp_path):
    """A copy of a build, to change: `fresh(kind)`."""

    def copy(kind="llama-fp16"):
        shutil.copytree(builds[kind].folder, tmp_path / kind)
        return open_build(tmp_path / kind)

    return copy


@pytest.fixture
def built(fresh):
    """(build, engine) of the fp16 model, to change."""
    opened = fresh()
    return opened, build_engine(opened, CAPACITY, max_prompt=8)


def names(opened) -> set[str]:
    return {path.name for path in opened.folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_builds_an_engine_with_whole_attention(fresh, kind):
    opened = fresh(kind)
    info = build_engine(opened, CAPACITY, max_batch=3, max_prompt=8)
    layers = info.facts["layers"]
    updates, attentions, rotaries = FUSED[kind]
    assert (layers["KV_CACHE_UPDATE"], layers.get("ROTARY_EMBEDDING", 0)) == (updates, rotaries)
    assert layers["ATTENTION_INPUT"] == layers["ATTENTION_OUTPUT"] == attentions
    assert "SOFTMAX" not in layers
    assert info.path.name == "engine-32-sm_89.plan"
    assert info.path.stat().st_size == info.facts["plan_bytes"] > 100_000
    assert names(opened) == {
        "manifest.json", "model-32.onnx", "weights.bin", "engine-32-sm_89.plan", "engine-32-sm_89.json",
    }  # fmt: skip


def test_sidecar_says_what_the_engine_is(built):
    opened, info = built
    facts = json.loads((opened.folder / "engine-32-sm_89.json").read_text())
    assert facts == info.facts
    assert facts["plan_sha256"] == sha256(info.path)
    assert facts["graph_sha256"] == opened.manifest["files"]["model-32.onnx"]["sha256"]
    assert facts["weights_sha256"] == opened.manifest["files"]["weights.bin"]["sha256"]
    assert (facts["package"], facts["version"]) == ("tensorrt_rtx", trt.__version__)
    assert (facts["compute_capability"], facts["gpu"], facts["capacity"]) == ("sm_89", None, CAPACITY)
    assert facts["config"] == LLAMA
    assert facts["seconds"] > 0
    size, version = f"{facts['plan_bytes'] / 1e6:.1f} MB", trt.__version__
    assert info.describe().startswith(f"{info.path}: {size}, by tensorrt_rtx {version} for sm_89 in ")
    assert all(isinstance(warning, str) for warning in facts["warnings"])
    assert facts["profiles"] == {
        "decode": {"batch": [1, 1, 4], "tokens": [1, 1, 1], "logit_positions": [1, 1, 1]},
        "prefill": {"batch": [1, 1, 4], "tokens": [1, 8, 8], "logit_positions": [1, 1, 8]},
    }


def test_fp32_attention_has_no_kernel(fresh):
    opened = fresh("llama-fp32")
    before = names(opened)
    with pytest.raises(ExportError, match=r"model-32\.onnx: tensorrt_rtx cannot build it; .*decomposable"):
        build_engine(opened, CAPACITY, decompose_attention=False)
    assert names(opened) == before


def test_named_capability(fresh):
    opened = fresh()
    limits = {"builder_optimization_level": 0, "workspace_bytes": 2**30}
    info = build_engine(opened, CAPACITY, compute_capability="sm_120", **limits)
    assert info.path.name == "engine-32-sm_120.plan"
    assert info.facts["compute_capability"] == "sm_120"


@pytest.mark.parametrize("name", ["sm_90", "SM89", "CURRENT", "8.9", "sm_"])
def test_unknown_capability(builds, name):
    with pytest.raises(ExportError, match=rf"compute_capability={name}: .* use one of .*sm_86, sm_89, sm_120"):
        build_engine(builds["llama-fp16"], CAPACITY, compute_capability=name)


def test_sizes_that_the_cache_does_not_allow(builds):
    opened = builds["llama-fp16"]
    with pytest.raises(ExportError, match=r"capacity=33: not in the build; use one of 32"):
        build_engine(opened, 33)
    with pytest.raises(ExportError, match=r"max_prompt=33: .*capacity=32"):
        build_engine(opened, CAPACITY, max_prompt=33)
    with pytest.raises(ConfigError, match="max_batch=0"):
        build_engine(opened, CAPACITY, max_batch=0)
    assert profiles(4096, 2, 4096)[1]["tokens"] == (1, 512, 4096)


def test_parse_error_names_node_and_reason(fresh):
    opened = fresh()
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd_one", domain="elsewhere")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("elsewhere", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), opened.graph(CAPACITY))
    with pytest.raises(ExportError, match=r"node 'odd_one' \(NoSuchOperator\): .+"):
        build_engine(opened, CAPACITY)


def test_a_graph_that_was_taken_apart_is_refused(fresh, monkeypatch):
    opened = fresh()
    whole = Counter(expected_layers(opened.config))
    check_layers(opened.config, whole)
    for kind in whole:
        with pytest.raises(ExportError, match=f"parsed {whole[kind] - 1} {kind} layers, not {whole[kind]}"):
            check_layers(opened.config, whole - Counter([kind]))
    before = names(opened)
    monkeypatch.setattr(engine_from_onnx, "expected_layers", lambda config: {"ROTARY_EMBEDDING": 5})
    with pytest.raises(ExportError, match="parsed 4 ROTARY_EMBEDDING layers, not 5"):
        build_engine(opened, CAPACITY)
    assert names(opened) == before


def test_an_interrupted_build_changes_nothing(built, monkeypatch):
    opened, info = built
    before, plan = names(opened), info.path.read_bytes()

    def interrupted(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("export.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_engine(opened, CAPACITY, max_prompt=4)
    assert names(opened) == before
    assert info.path.read_bytes() == plan
    assert read_engine(opened, CAPACITY, trt, ADA)[0] == plan


def test_a_kill_between_plan_and_sidecar_is_noticed(built, monkeypatch):
    opened, info = built
    old = info.path.with_suffix(".json").read_bytes()
    build_engine(opened, CAPACITY, max_prompt=4)
    info.path.with_suffix(".json").write_bytes(old)
    with pytest.raises(ExportError, match="SHA-256 differs"):
        read_engine(opened, CAPACITY, trt, ADA)


def test_a_changed_plan_is_refused(built):
    opened, info = built
    plan, read = read_engine(opened, CAPACITY, trt, ADA)
    assert plan == info.path.read_bytes()
    assert read == info
    info.path.write_bytes(plan[:-1] + bytes([plan[-1] ^ 1]))
    with pytest.raises(ExportError, match=r"not the plan that was built \(SHA-256 differs\); build the engine again"):
        read_engine(opened, CAPACITY, trt, ADA)


@pytest.mark.parametrize(
    "key",
    ["package", "version", "compute_capability", "config", "precision", "capacity", "graph_sha256", "weights_sha256"],
)
def test_a_plan_from_elsewhere_is_refused(built, key):
    opened, info = built
    sidecar = info.path.with_suffix(".json")
    sidecar.write_text(json.dumps(info.facts | {key: "another"}))
    with pytest.raises(ExportError, match=f"built for {key}='another', here it is .*; build the engine again"):
        read_engine(opened, CAPACITY, trt, ADA)
    sidecar.write_text(json.dumps({k: v for k, v in info.facts.items() if k != key}))
    with pytest.raises(ExportError, match=f"built for {key}=None"):
        read_engine(opened, CAPACITY, trt, ADA)


def test_a_plan_needs_its_gpu_and_its_sidecar(built):
    opened, info = built
    with pytest.raises(ExportError, match=r"engine-32-sm_120\.plan: missing, .* \(Blackwell, sm_120\)"):
        read_engine(opened, CAPACITY, trt, Gpu("Blackwell", "sm_120"))
    full = SimpleNamespace(__name__="tensorrt", __version__="11.0")  # its plans are for one model of GPU
    info.path.with_suffix(".json").write_text(
        json.dumps(info.facts | {"package": "tensorrt", "version": "11.0", "gpu": "another Ada"})
    )
    with pytest.raises(ExportError, match="built for gpu='another Ada', here it is 'some Ada'"):
        read_engine(opened, CAPACITY, full, ADA)
    info.path.with_suffix(".json").write_text("{")
    with pytest.raises(ExportError, match=r"not JSON.*build the engine again"):
        read_engine(opened, CAPACITY, trt, ADA)
    info.path.with_suffix(".json").unlink()
    with pytest.raises(ExportError, match=r"engine-32-sm_89\.json: missing, .*build the engine again"):
        read_engine(opened, CAPACITY, trt, ADA)


def test_package_is_chosen_by_the_machine(monkeypatch):
    full = SimpleNamespace(__name__="tensorrt", __version__="11.0")
    monkeypatch.setitem(sys.modules, "tensorrt", full)
    assert load_tensorrt() is trt
    monkeypatch.setattr(engine_from_onnx, "gpu", lambda: ADA)
    assert load_tensorrt() is full
    assert engine_from_onnx._target(full, None, ADA) == ("sm_89", None)
    with pytest.raises(ExportError, match="compute_capability=sm_120: tensorrt builds for this machine, sm_89"):
        engine_from_onnx._target(full, "sm_120", ADA)
    assert engine_from_onnx._target(trt, None, ADA) == ("sm_89", trt.ComputeCapability.CURRENT)
    assert engine_from_onnx._target(trt, "sm_75", ADA) == ("sm_75", trt.ComputeCapability.SM75)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(ExportError, match=r'tensorrt: .*tensorrt_rtx: .*pip install "archcalc\[trt-rtx\]"'):
        load_tensorrt()


def test_gpu_asks_the_driver(monkeypatch):
    monkeypatch.undo()
    driver = SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDeviceGet=lambda device, ordinal: 0,
        cuDeviceGetName=lambda name, size, device: setattr(name, "value", b"Fake 9000"),
        cuDeviceGetAttribute=lambda value, attribute, device: setattr(value._obj, "value", {75: 12, 76: 0}[attribute]),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert engine_from_onnx.gpu() == Gpu("Fake 9000", "sm_120")
    driver.cuDeviceGet = lambda device, ordinal: 101  # CUDA_ERROR_INVALID_DEVICE
    assert engine_from_onnx.gpu() is None
    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: ctypes.PyDLL("/no/such/library"))  # as without a driver: OSError
    assert engine_from_onnx.gpu() is None


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
