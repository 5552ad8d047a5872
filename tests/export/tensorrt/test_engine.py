"""Engines are built without a GPU, and only the engine that was built for this build and GPU is ever opened."""

import ctypes
import errno
import json
import os
import sys
from types import SimpleNamespace

import onnx
import pytest
import tensorrt_rtx as trt
from engines import ADA, CAPACITY, FUSED, KINDS, LLAMA
from onnx import TensorProto, helper

from archcalc.errors import ConfigError
from export import engine_layers, tensorrt_package
from export.engine_from_onnx import build_engine
from export.files import ExportError, sha256
from export.runtimes.tensorrt_session import read_engine
from export.tensorrt_package import Gpu, Log, load_tensorrt, target_of


def names(opened) -> set[str]:
    return {path.name for path in opened.folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_builds_an_engine_with_whole_attention(fresh, kind):
    opened = fresh(kind)
    info = build_engine(opened, CAPACITY, max_batch=3, max_prompt=8)
    layers = info.facts["layers"]
    updates, attentions, rotaries, norms = FUSED[kind]
    assert (layers["KV_CACHE_UPDATE"], layers.get("ROTARY_EMBEDDING", 0)) == (updates, rotaries)
    assert layers.get("NORMALIZATION", 0) == norms
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
    assert "\n" not in info.describe()
    assert (facts["weights_stripped"], facts["attention_without_kernel"], facts["notes"]) == (False, [], [])
    assert all(isinstance(warning, str) for warning in facts["warnings"])
    assert facts["profiles"] == {
        "decode": {"batch": [1, 1, 4], "tokens": [1, 1, 1], "logit_positions": [1, 1, 1]},
        "prefill": {"batch": [1, 1, 4], "tokens": [1, 8, 8], "logit_positions": [1, 1, 8]},
    }


def test_fp32_attention_has_no_kernel(fresh):
    opened = fresh("llama-fp32")
    before = names(opened)
    with pytest.raises(ExportError, match=r"model-32\.onnx: tensorrt_rtx [\d.]+ cannot build it; .*decomposable"):
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


def test_parse_error_names_node_and_reason(fresh):
    opened = fresh()
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd_one", domain="elsewhere")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("elsewhere", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), opened.graph(CAPACITY))
    with pytest.raises(ExportError, match=r"node 'odd_one' \(NoSuchOperator\): .+"):
        build_engine(opened, CAPACITY)


def test_a_graph_that_was_taken_apart_is_not_built(fresh, monkeypatch):
    opened = fresh()
    before = names(opened)
    monkeypatch.setattr(engine_layers, "expected_layers", lambda config, stack: {"ROTARY_EMBEDDING": 5})
    with pytest.raises(ExportError, match="parsed 4 ROTARY_EMBEDDING layers, not 5"):
        build_engine(opened, CAPACITY)
    assert names(opened) == before


def test_fp32_runs_as_products_and_says_so(fresh):
    info = build_engine(fresh("llama-fp32"), CAPACITY, max_prompt=8, builder_optimization_level=0)
    assert info.facts["attention_without_kernel"] == ["fp32"]
    assert info.describe().endswith("Attention runs as products and a softmax: there is no kernel for fp32.")


def test_stripping_weights_needs_a_gpu(fresh):
    opened = fresh()
    before = names(opened)
    with pytest.raises(
        ExportError, match=r"stripWeights=True: tensorrt_rtx [\d.]+ cannot strip a plan without a GPU \("
    ):
        build_engine(opened, CAPACITY, strip_weights=True)
    assert names(opened) == before


def test_one_logger_a_process_tells_the_newest_log(builds, tmp_path):
    """While something that was made with a logger lives, the package uses no other one."""
    first = Log(trt)
    builder = trt.Builder(first.sink)
    second = Log(trt)
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    other = trt.Builder(second.sink)
    assert not trt.OnnxParser(other.create_network(0), second.sink).parse_from_file(str(tmp_path / "broken.onnx"))
    assert second.errors
    assert first.errors == []
    del builder


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


AXES = ("batch", "tokens", "logit_positions")


def both(ranges) -> dict:
    return {"decode": ranges, "prefill": ranges}


@pytest.mark.parametrize(
    "profiles",
    [
        None,
        [],
        {"decode": {axis: [1, 1, 8] for axis in AXES}},
        both(None),
        both({axis: [1, 1, 8] for axis in AXES[:2]}),
        both({axis: [1, 1, 8] for axis in (*AXES, "source_tokens")}),
        both(dict.fromkeys(AXES, "118")),
        both({axis: [1, 8] for axis in AXES}),
        both({axis: [1, 1, "8"] for axis in AXES}),
    ],
)
def test_a_sidecar_without_the_plans_profiles_is_refused(built, profiles):
    opened, info = built
    info.path.with_suffix(".json").write_text(json.dumps(info.facts | {"profiles": profiles}))
    message = r"profiles=.*: not least, tuned and most batch, logit_positions, tokens of decode, prefill; build the"
    with pytest.raises(ExportError, match=message):
        read_engine(opened, CAPACITY, trt, ADA)


def test_functions_that_call_themselves_are_refused(fresh):
    """The parser would call them until the process dies."""
    opened = fresh()
    model = onnx.load(opened.graph(CAPACITY), load_external_data=False)
    block = next(function for function in model.functions if function.name == "Block0")
    branch = helper.make_graph([helper.make_node("Block0", list(block.input), ["z"], domain=block.domain)], "b", [], [])
    block.node.append(helper.make_node("If", ["present"], [], then_branch=branch, else_branch=branch))
    opened.graph(CAPACITY).write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=r"model-32\.onnx: Block0: functions that call themselves; build it again"):
        build_engine(opened, CAPACITY)


def test_a_plan_that_cannot_be_written_is_one_line(built, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened, info = built
    before, plan = names(opened), info.path.read_bytes()
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(ExportError, match=r"engine-32-sm_89\.plan: cannot be written, No space left on device; make"):
        build_engine(opened, CAPACITY, max_prompt=4)
    assert names(opened) == before
    assert info.path.read_bytes() == plan


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
    monkeypatch.setattr(tensorrt_package, "gpu", lambda: ADA)
    assert load_tensorrt() is full
    assert target_of(full, None, ADA) == ("sm_89", None)
    with pytest.raises(ExportError, match="compute_capability=sm_120: tensorrt builds for this machine, sm_89"):
        target_of(full, "sm_120", ADA)
    assert target_of(trt, None, ADA) == ("sm_89", trt.ComputeCapability.CURRENT)
    assert target_of(trt, "sm_75", ADA) == ("sm_75", trt.ComputeCapability.SM75)
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
        cuDeviceGetUuid=lambda uuid, device: ctypes.memmove(uuid, bytes(range(16)), 16),
        cuDeviceGetAttribute=lambda value, attribute, device: setattr(value._obj, "value", {75: 12, 76: 0}[attribute]),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert tensorrt_package.gpu() == Gpu("Fake 9000", "sm_120", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
    driver.cuDeviceGet = lambda device, ordinal: 101  # CUDA_ERROR_INVALID_DEVICE
    assert tensorrt_package.gpu() is None
    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: ctypes.PyDLL("/no/such/library"))  # as without a driver: OSError
    assert tensorrt_package.gpu() is None
