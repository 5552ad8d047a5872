"""Every family's graph: what TensorRT-RTX parses it to, and what is changed before it is built."""

import re
from types import SimpleNamespace

import onnx
import pytest
import tensorrt_rtx as trt
from engines import CAPACITY, LLAMA
from onnx import TensorProto, helper

pytest.importorskip("transformers", reason="transformers is not installed")

from archcalc.hf import config_from_keys
from archcalc.parts.latent import LatentAttention
from archcalc.presets import preset
from export.build import build
from export.engine_from_onnx import EngineSettings, _builder_config, _parse, build_engine
from export.engine_layers import (
    allow_decomposition,
    attentions,
    check_layers,
    expected_layers,
    without_kernel,
)
from export.engine_profiles import add_profile, profiles
from export.files import ExportError
from export.precision import export_precision
from export.tensorrt_package import Log
from models.parity.checkpoints import tiny
from models.parity.compare import Pair

SLOTS = 48  # no size of a tiny model
# Every family's graph is parsed in test_parity_families.py; a few are built, as each takes seconds.
BUILT = {
    "mistral": [],
    "gpt2": ["head_dim=8"],
    "falcon_alibi": ["a bias"],
    "gemma2": [],  # soft caps: products and a softmax
    "mixtral": [],
    "mamba2": [],
}


@pytest.mark.parametrize("name", BUILT)
def test_an_engine_of_a_family_is_built(tmp_path, name):
    pair = Pair(*tiny(name))
    made = build(pair.config, tmp_path / "build", "fp16", (SLOTS,), pair.ours, {"kind": "random", "seed": 0})
    info = build_engine(made, SLOTS, max_prompt=8, compute_capability="sm_89", builder_optimization_level=0)
    assert info.facts["attention_without_kernel"] == BUILT[name]
    assert info.facts["plan_bytes"] > 0


@pytest.mark.parametrize(("precision", "activations"), [("bf16", None), ("int8", "fp16"), ("int4", "fp16")])
def test_an_engine_of_a_precision_is_built(tmp_path, precision, activations):
    config = config_from_keys(LLAMA, name="llama")
    made = build(config, tmp_path / "build", export_precision(precision, activations), (CAPACITY,))
    info = build_engine(made, CAPACITY, max_prompt=8, compute_capability="sm_89", builder_optimization_level=0)
    assert info.facts["layers"].get("DEQUANTIZE", 0) == (15 if activations else 0)  # seven a layer, and the head
    assert info.facts["plan_bytes"] > 0


def test_operators_of_another_runtime_are_refused(tmp_path):
    config = config_from_keys(LLAMA, name="llama")
    for more in ({"precision": "int8-dynamic"}, {"target": "onnxruntime"}):
        made = build(config, tmp_path / "build", capacities=(CAPACITY,), **more)
        with pytest.raises(ExportError, match="has operators that TensorRT does not know"):
            build_engine(made, CAPACITY)


def test_expected_layers_of_each_kind():
    """Counted by hand: (cache updates, attentions, rotary embeddings, layer norms)."""

    def counts(config):
        found = expected_layers(config)
        assert found["ATTENTION_OUTPUT"] == found["ATTENTION_INPUT"]
        kinds = ("KV_CACHE_UPDATE", "ATTENTION_INPUT", "ROTARY_EMBEDDING", "NORMALIZATION")
        return tuple(found[kind] for kind in kinds)

    def of(name):
        return counts(Pair(*tiny(name)).config)

    assert counts(preset("llama3-8b")) == (64, 32, 64, 0)
    assert counts(preset("gpt2")) == (24, 12, 0, 25)
    assert of("falcon") == (4, 2, 4, 3)  # one norm for attention and feed-forward
    assert of("falcon_new") == (4, 2, 4, 5)  # one each
    config = Pair(*tiny("gpt_oss")).config
    layers = len(config.decoder.layers)
    assert counts(config) == (2 * layers, 0, 2 * layers, 0)  # sinks: products and a softmax
    config = Pair(*tiny("deepseek_v3")).config
    layers = len(config.decoder.layers)
    assert all(isinstance(block.self_attn, LatentAttention) for block in config.decoder.layers)
    assert counts(config) == (2 * layers, 0, 2 * layers, 0)  # the absorbed form: values of another width
    config = Pair(*tiny("qwen3_next")).config
    full = [block.self_attn for block in config.decoder.layers if hasattr(block.self_attn, "head_dim")]
    attending = sum(mixer.__class__.__name__ == "Attention" for mixer in full)
    assert 0 < attending < len(config.decoder.layers)  # the others are recurrences
    assert counts(config) == (2 * attending, attending, 2 * attending, 0)


def test_a_graph_that_was_taken_apart_is_refused():
    config = preset("gpt2")
    whole = expected_layers(config) | {"ROTARY_EMBEDDING": 0}
    check_layers(config, whole)
    for kind in expected_layers(config):
        for wrong in (whole[kind] - 1, whole[kind] + 1):
            with pytest.raises(ExportError, match=f"parsed {wrong} {kind} layers, not {whole[kind]}"):
                check_layers(config, whole | {kind: wrong})


HALF, BF16, FLOAT = trt.DataType.HALF, trt.DataType.BF16, trt.DataType.FLOAT


@pytest.mark.parametrize(
    ("dtype", "size", "capability", "reason"),
    [
        (HALF, 16, "sm_75", None), (HALF, 256, "sm_89", None), (HALF, 72, "sm_120", None), (BF16, 64, "sm_89", None),
        (HALF, 8, "sm_89", "head_dim=8"), (HALF, 20, "sm_89", "head_dim=20"), (HALF, 264, "sm_89", "head_dim=264"),
        (BF16, 64, "sm_75", "bf16 on sm_75"), (FLOAT, 64, "sm_89", "fp32"),
    ],
)  # fmt: skip
def test_which_attention_has_a_kernel(dtype, size, capability, reason):
    query = SimpleNamespace(dtype=dtype, shape=(-1, 4, -1, size))
    assert without_kernel(trt, query, capability) == reason


def attention_alone(path, size, scale=None):
    """An ONNX file of one attention over a cache of 16 slots, with queries [B, 4, T, H]."""
    value = helper.make_tensor_value_info
    query, keys, mask = ["batch", 4, "tokens", size], ["batch", 2, 16, size], ["batch", 1, "tokens", 16]
    inputs = [value(name, TensorProto.FLOAT16, keys) for name in "kv"]
    inputs += [value("q", TensorProto.FLOAT16, query), value("m", TensorProto.BOOL, mask)]
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], **({"scale": scale} if scale else {}))
    graph = helper.make_graph([node], "attention", inputs, [value("y", TensorProto.FLOAT16, query)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]), path)


def plan_of(path, change, capacity=16) -> bytes | None:
    """The plan for sm_89 of the file's network, changed before it is built; None if it cannot be built."""
    log = Log(trt)
    builder = trt.Builder(log.sink)
    network, parser = _parse(trt, log, builder, path)
    change(network)
    config = _builder_config(trt, builder, trt.ComputeCapability.SM89, EngineSettings(builder_optimization_level=0))
    for ranges in profiles(capacity, 2, 8).values():
        add_profile(builder, network, config, ranges)
    plan = builder.build_serialized_network(network, config)
    del parser
    return None if plan is None else bytes(plan)


@pytest.mark.parametrize(
    ("size", "kernel"), [(8, False), (12, False), (16, True), (24, True), (256, True), (264, False)]
)
def test_the_rule_is_the_packages(tmp_path, size, kernel):
    """What the rule has a kernel for is built without decomposition, everything else is not."""
    path = tmp_path / "attention.onnx"
    attention_alone(path, size)

    def by_rule(network):
        assert allow_decomposition(trt, network, "sm_89") == ([] if kernel else [f"head_dim={size}"])
        assert [a.decomposable for a in attentions(trt, network)] == [not kernel]

    assert (plan_of(path, lambda network: None) is not None) == kernel
    if size % 8 == 0:  # no product over another size alone is built either
        assert plan_of(path, by_rule) is not None


def kernels(plan: bytes) -> set[bytes]:
    """Names of the generated kernels, which list what they do."""
    return set(re.findall(rb"__myl_([A-Z][A-Za-z]+)", plan))


def scaled_inputs(network) -> list[tuple]:
    """(attention, what its query and its keys were multiplied from, by what) as the parser has made it."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    made = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
    found = []
    for attention in attentions(trt, network):
        queries, keys = (made[attention.get_input(i).name] for i in (0, 1))
        assert queries.type == keys.type == trt.LayerType.ELEMENTWISE
        found.append((attention, queries.get_input(0), keys.get_input(0), keys.get_input(1)))
    return found


@pytest.mark.parametrize("size", [16, 8])  # with a kernel, and as products
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_scale_is_no_pass_over_the_cache(tmp_path, size, scale):
    """The parser multiplies all keys; the engine has the same kernels as one in which they are not."""
    path = tmp_path / "attention.onnx"
    attention_alone(path, size, scale)

    def as_parsed(network):
        allow_decomposition(trt, network, "sm_89")

    def keys_as_they_are(network):
        as_parsed(network)
        ((attention, _, keys, _),) = scaled_inputs(network)
        attention.set_input(1, keys)

    def queries_twice(network):
        keys_as_they_are(network)
        (attention,) = attentions(trt, network)
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        root = [layer for layer in layers if layer.type == trt.LayerType.ELEMENTWISE][-1].get_input(1)
        product = network.add_elementwise(attention.get_input(0), root, trt.ElementWiseOperation.PROD)
        attention.set_input(0, product.get_output(0))

    found = kernels(plan_of(path, as_parsed))
    assert found == kernels(plan_of(path, keys_as_they_are))
    if size == 16:  # a product that is not taken into the attention does show
        assert b"MulMul" in kernels(plan_of(path, queries_twice)) - found


def test_the_scale_is_no_pass_over_a_models_cache(builds):
    def keys_as_they_are(network):
        found = scaled_inputs(network)
        assert len(found) == 2
        for attention, _, keys, _ in found:
            assert keys.name.startswith("present.") and tuple(keys.shape)[2:] == (CAPACITY, 16)
            attention.set_input(1, keys)

    graph = builds["llama-fp16"].graph(CAPACITY)
    as_parsed, changed = (plan_of(graph, change, CAPACITY) for change in (lambda network: None, keys_as_they_are))
    assert kernels(as_parsed) == kernels(changed)
    assert any(b"Scat" in name for name in kernels(as_parsed))
