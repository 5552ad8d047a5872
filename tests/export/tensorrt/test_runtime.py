"""Running an engine, tested up to the driver with a context that computes on the CPU."""

import dataclasses
import gc
import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tensorrt_rtx
import torch
from engines import ADA, CAPACITY, LLAMA, CpuContext, CpuStream, Parsed

from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from export import engine_from_onnx
from export.build import build
from export.engine_profiles import profiles
from export.files import ExportError
from export.precision import export_precision
from export.runtimes import tensorrt_, tensorrt_session
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.runtimes.tensorrt_ import TensorRTEngine
from export.runtimes.tensorrt_session import Session, refit


def test_running_without_a_gpu_says_so(built, monkeypatch):
    with pytest.raises(ExportError, match="no NVIDIA driver: build works here, running needs a GPU; "):
        TensorRTEngine(built[0], CAPACITY)
    monkeypatch.setattr(tensorrt_, "gpu", lambda: ADA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExportError, match=r"torch .*: cannot use some Ada; install"):
        TensorRTEngine(built[0], CAPACITY)


@pytest.fixture
def on_cpu(builds):
    """(engine, context, ONNX Runtime over the same graph)."""
    opened = builds["llama-fp32"]
    ranges = json.loads(json.dumps(profiles(CAPACITY, 2, 8)))
    context = CpuContext(OnnxRuntimeEngine(opened, CAPACITY, threads=1).session)
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


class CapturingStream(CpuStream):
    """A stream that a pass can be captured on: what was captured is run with what the context is bound to then."""

    def __init__(self, context, works=True):
        self.context, self.works, self.captures, self.replays, self.plain = context, works, 0, 0, 0

    def timed(self, enqueue):
        return enqueue(self.handle), 0.25

    def captured(self, enqueue):
        assert self.context.executions > 0  # of this binding: TensorRT defers updates to the first one
        self.captures += 1
        addresses = dict(self.context.addresses)

        def replay():
            assert addresses == self.context.addresses  # a graph ends with the binding that it was made of
            self.replays += 1
            enqueue(self.handle)

        return replay if self.works else None


@pytest.fixture
def capturing(on_cpu, monkeypatch):
    """(engine that captures, its stream, ONNX Runtime)."""
    engine, context, other = on_cpu
    context.executions = 0
    execute, bind = context.execute_async_v3, context.set_tensor_address

    def counted(handle):
        context.executions += 1
        return execute(handle)

    def rebound(name, address):
        context.executions = 0
        bind(name, address)

    monkeypatch.setattr(context, "execute_async_v3", counted)
    monkeypatch.setattr(context, "set_tensor_address", rebound)
    stream = CapturingStream(context)
    session = dataclasses.replace(engine.session, stream=stream, captures=True)
    return TensorRTEngine(engine.build, CAPACITY, session), stream, other


def test_a_repeated_pass_is_captured_once(capturing):
    engine, stream, other = capturing
    for ours, theirs in passes(engine, other):  # 5 tokens, 1, 1, 4
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert (stream.captures, stream.replays) == (1, 1)


def test_prepared_passes_are_captured_before_they_are_measured(capturing):
    engine, stream, _ = capturing
    decode, prefill = engine.prepare(2, 1, 9), engine.prepare(1, 8, 0)
    for run, captures, replays in ((decode, 1, 1), (decode, 1, 2), (prefill, 2, 3), (prefill, 2, 4), (decode, 3, 5)):
        run()
        assert (stream.captures, stream.replays) == (captures, replays)


def test_a_pass_that_cannot_be_captured_is_enqueued(capturing):
    engine, stream, other = capturing
    stream.works = False
    for ours, theirs in passes(engine, other):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    run = engine.prepare(1, 1, 0)
    run()
    run()
    assert (stream.captures, stream.replays) == (1, 0)


def test_a_bound_pass_is_filled_again(on_cpu):
    engine, context, _ = on_cpu
    cache, arguments = engine.new_cache(1), (np.array([[3]]), np.array([[4]]), np.array([4]), np.array([[0]]))
    first = engine.run(*arguments, cache)
    kept = first.copy()
    second = engine.run(np.array([[5]]), *arguments[1:], cache)
    assert context.binds == 1
    np.testing.assert_array_equal(first, kept)  # the second pass does not write into the first one's answer
    assert np.abs(first - second).max() > 1e-3
    with pytest.raises(ConfigError, match="context=33"):
        engine.run(*arguments[:2], np.array([32]), arguments[3], cache)
    engine.run(*arguments, engine.new_cache(1))
    assert context.binds == 2


def test_a_session_is_closed_with_its_engine(on_cpu):
    closed = []
    session = dataclasses.replace(on_cpu[0].session, close=lambda: closed.append(True))
    engine = TensorRTEngine(on_cpu[0].build, CAPACITY, session)
    assert closed == []
    del engine
    gc.collect()
    assert closed == [True]


def test_a_recurrent_state_has_a_tensor_before_and_one_after(on_cpu, monkeypatch):
    """A layer's state is read while it is written; the next pass reads what this one wrote."""
    engine, context, _ = on_cpu
    state = SimpleNamespace(past="past_key_values.0.state", present="present.0.state", shape=(3,))
    engine.caches = [state]

    def doubled_and_one(handle):
        past, present = (context._at(name, (2, 3), np.float32) for name in (state.past, state.present))
        present[0] = 2 * past[0] + 1
        present[1] = past[0]  # wrong if the two were one
        return True

    monkeypatch.setattr(context, "execute_async_v3", doubled_and_one)
    cache = engine.new_cache(2)
    for expected in ([[1] * 3, [0] * 3], [[3] * 3, [1] * 3]):
        engine.run(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(2), np.zeros((2, 1)), cache)
        assert cache[0].tolist() == expected


def test_time_of_each_layer(on_cpu, monkeypatch):
    engine, context, _ = on_cpu
    execute, context.profiler = context.execute_async_v3, None
    monkeypatch.setattr(tensorrt_, "load_tensorrt", lambda: tensorrt_rtx)

    def profiled(handle):
        if context.profiler:
            context.profiler.report_layer_time("attention", 3.0)
            context.profiler.report_layer_time("head", 1.0)
        return execute(handle)

    monkeypatch.setattr(context, "execute_async_v3", profiled)
    times = engine.layer_times(1, 1, 4, passes=5)  # the first one, a warm-up, is not told
    assert times == pytest.approx({"attention": 0.003, "head": 0.001})


class Parts:
    """A refitter and a parser's refitter, of a package that finds all weights or not."""

    __name__, __version__ = "tensorrt", "11.0"

    def __init__(self, parses=True, refits=True):
        self.asked = []
        error = SimpleNamespace(desc=lambda: "weight x is missing")
        refitter = SimpleNamespace(refit_cuda_engine=lambda: self.asked.append("engine") or refits)
        parser = SimpleNamespace(
            refit_from_bytes=lambda model, path: self.asked.extend((model, path)) or parses,
            num_errors=0 if parses else 1,
            get_error=lambda index: error,
        )
        self.Refitter = lambda engine, sink: refitter
        self.OnnxParserRefitter = lambda found, sink: parser if found is refitter else None


def test_stripped_weights_are_put_back_from_the_graph(builds):
    said = SimpleNamespace(sink=None, reason=lambda: "out of memory")
    good, graph = Parts(), builds["llama-fp16"].graph(CAPACITY)
    refit(good, None, said, graph)
    assert good.asked == [graph.read_bytes(), str(graph), "engine"]
    with pytest.raises(ExportError, match=r"onnx: tensorrt 11\.0 cannot put its weights back, weight x is missing"):
        refit(Parts(parses=False), None, said, graph)
    with pytest.raises(ExportError, match="out of memory; build without stripWeights"):
        refit(Parts(refits=False), None, said, graph)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_every_constant_of_a_quantized_network_is_found_again(tmp_path, precision):
    """By the name that it was parsed with: calls of functions are inlined first, and what stands in them renamed."""
    config = config_from_keys(LLAMA, name="llama")
    made, again = build(config, tmp_path / "build", export_precision(precision, "fp16"), (CAPACITY,)), Parts()
    refit(again, None, SimpleNamespace(sink=None), made.graph(CAPACITY))
    graph = onnx.ModelProto.FromString(again.asked[0]).graph
    known = {tensor.name for tensor in graph.initializer}
    known |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    network = Parsed(made, CAPACITY).network
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    constants = {layer.name for layer in layers if layer.type == tensorrt_rtx.LayerType.CONSTANT}
    own = {name for name in constants if not name.startswith(("(Unnamed Layer", "ONNXTRT_"))}  # the parser's, of none
    assert {tensor.name for tensor in graph.initializer} | {"val_8__2"} <= own <= known


def opened_with(monkeypatch, built, trt, cuda_graph=True):
    """A session over a package that does not need a driver."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(tensorrt_session, "CudaStream", CpuStream)
    monkeypatch.setattr(tensorrt_session, "load_tensorrt", lambda: trt)
    return tensorrt_session.open_session(built[0], CAPACITY, ADA, cuda_graph)


class Package:
    """What of a package is needed to open a plan. TensorRT-RTX also has runtime configurations."""

    ILogger, __version__ = tensorrt_rtx.ILogger, tensorrt_rtx.__version__

    def __init__(self, name, context="context", rtx=False):
        self.__name__, self.config = name, SimpleNamespace(create_runtime_cache=lambda: self.cache)
        self.config.set_runtime_cache = lambda cache: None
        self.cache = SimpleNamespace(serialize=lambda: b"kernels", deserialize=lambda known: True)
        engine = SimpleNamespace(
            create_execution_context=lambda *config: context, create_runtime_config=lambda: self.config
        )
        self.Runtime = lambda sink: SimpleNamespace(deserialize_cuda_engine=lambda plan: engine)
        if rtx:
            for shared in ("IRuntimeCache", "CudaGraphStrategy", "DynamicShapesKernelSpecializationStrategy"):
                setattr(self, shared, getattr(tensorrt_rtx, shared))


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_tensorrt_rtx_makes_cuda_graphs_and_keeps_kernels_itself(built, monkeypatch, cuda_graph):
    trt = Package("tensorrt_rtx", rtx=True)
    session = opened_with(monkeypatch, built, trt, cuda_graph)
    assert session.captures is False
    strategy = tensorrt_rtx.CudaGraphStrategy
    assert trt.config.cuda_graph_strategy == (strategy.WHOLE_GRAPH_CAPTURE if cuda_graph else strategy.DISABLED)
    session.close()
    assert (built[0].folder / "engine-32-sm_89.kernels").read_bytes() == b"kernels"


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_passes_of_tensorrt_are_captured_here(built, monkeypatch, cuda_graph):
    opened, info = built
    facts = info.facts | {"package": "tensorrt", "gpu": ADA.name}
    info.path.with_suffix(".json").write_text(json.dumps(facts))
    session = opened_with(monkeypatch, built, Package("tensorrt"), cuda_graph)
    assert session.captures is cuda_graph
    refits = []
    monkeypatch.setattr(tensorrt_session, "refit", lambda trt, engine, said, graph: refits.append(graph))
    info.path.with_suffix(".json").write_text(json.dumps(facts | {"weights_stripped": True}))
    opened_with(monkeypatch, built, Package("tensorrt"))
    assert refits == [opened.graph(CAPACITY)]
    with pytest.raises(ExportError, match="cannot be opened, no reason given; build the engine again"):
        opened_with(monkeypatch, built, Package("tensorrt", context=None))
