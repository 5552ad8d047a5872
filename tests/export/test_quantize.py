"""Weights as small integers: the numbers are the nearest ones, and the runtime multiplies integers."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("onnxruntime", reason='needs the extra: pip install "archcalc[export]"')

import onnxruntime as ort

from archcalc.errors import ConfigError
from archcalc.presets import preset
from export.as_stored import give_stored_numbers
from export.build import build, open_build
from export.compare import exact
from export.precision import export_precision
from export.quantize import Integers, dequantize, quantize
from export.reference import reference
from export.runtimes.onnxruntime_ import SETTINGS, OnnxRuntimeEngine
from export.verify import verify, verify_both

FORMS = [Integers(4, 32), Integers(8, 32), Integers(4, 16), Integers(8, None)]


@pytest.mark.parametrize("form", FORMS)
def test_integers_are_the_nearest_and_the_largest_is_exact(form):
    weight = np.random.default_rng(0).standard_normal((100, 7)).astype(np.float32)
    whole, scale = quantize(weight, form)
    assert scale.shape == form.scale_shape(100, 7)
    assert abs(whole.astype(int)).max() == 2 ** (form.bits - 1) - 1
    step = np.repeat(scale, form.group, axis=0)[:100] if form.group else scale
    assert (abs(dequantize(whole, scale, form) - weight) <= step / 2 * (1 + 1e-5)).all()
    assert len(numpy_helper.from_array(whole).raw_data) == form.nbytes(100, 7)
    top = np.unravel_index(abs(weight).argmax(), weight.shape)
    assert dequantize(whole, scale, form)[top] == pytest.approx(weight[top], rel=1e-6)


def test_a_group_of_zeros_stays_zero():
    whole, scale = quantize(np.zeros((32, 3), np.float32), FORMS[0])
    assert not whole.astype(int).any() and np.isfinite(scale).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["int8", "int4", "int8-dynamic"])
def test_a_quantized_build_computes_what_its_numbers_say(tmp_path, precision, tied):
    config = preset("tiny-decoder", {"tie_word_embeddings": tied})
    model, origin = reference(config, "random")
    made = build(config, tmp_path / "build", precision, (32,), model, origin)
    engine = OnnxRuntimeEngine(made, 32)
    give_stored_numbers(model, made)
    verdicts = verify_both(made, "onnxruntime", 32, model)
    assert [verdict.problems for verdict in verdicts] == [[]] * len(verdicts)
    assert [verdict.tolerance for verdict in verdicts] == ([0.25] if "dynamic" in precision else [1e-4, 0.25])
    assert verdicts[-1].worst_logits > 1e-3  # of rounding
    assert [row for row in exact(made, engine) if not row.passed] == []
    assert model.lm_head.weight is not model.embed_tokens.weight


def test_other_numbers_than_those_of_the_integers_are_seen(tmp_path):
    """Without rounding of activations even the weights before quantization are too far away; with it, wrong ones."""
    config = preset("tiny-decoder")
    model, origin = reference(config, "random")
    made = build(config, tmp_path / "build", "int8", (32,), model, origin)
    assert not verify(made, OnnxRuntimeEngine(made, 32, exact=True), model, steps=4).passed
    give_stored_numbers(model, made)
    assert verify(made, OnnxRuntimeEngine(made, 32, exact=True), model, steps=4).passed
    model.layers[1].mlp.up_proj.weight *= 1.001
    assert not verify(made, OnnxRuntimeEngine(made, 32, exact=True), model, steps=4).passed
    for layer in model.layers:
        layer.mlp.up_proj.weight *= 3
    assert not verify_both(made, "onnxruntime", 32, model)[1].passed


# The second where one input has several readers: q, k and v, gate and up.
DYNAMIC = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
PRODUCTS = {"int4": ("MatMulNBits",), "int8": ("MatMulNBits",), "int8-dynamic": DYNAMIC}


@pytest.mark.parametrize(("precision", "products"), PRODUCTS.items())
def test_onnx_runtime_multiplies_integers(tmp_path, precision, products):
    """After its optimizer no weight is turned into fp32: a graph that it does not see through would be slow."""
    made = build(preset("tiny-decoder"), tmp_path / "build", precision, (16,))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(made.graph(16), options, **SETTINGS)
    graph = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert sum(kinds[product] for product in products) == 15  # seven a layer, two layers, the head
    assert not {"DequantizeLinear", "MatMul", "FusedMatMul", "MatMulInteger"} & set(kinds)


def test_onnx_runtime_reads_weights_as_they_lie(tiny, tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(tiny.graph(16), options, **SETTINGS)
    graph = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
    assert Counter(node.op_type for node in graph.node)["FusedMatMul"] == 15


def test_a_build_remembers_its_precision(tmp_path):
    wanted = export_precision("int4", "fp16", 64)
    build(preset("tiny-decoder"), tmp_path / "build", wanted, (16,))
    assert open_build(tmp_path / "build").precision == wanted
    assert (wanted.quantization.group_size, wanted.activations, wanted.largest) == (64, "fp16", 65504.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("int3", {}, "precision='int3'"),
        ("fp16", {"activations": "fp32"}, "activations=fp32: fp16 weights are not quantized"),
        ("fp32", {"group_size": 32}, "group_size=32: fp32 weights are not quantized"),
        ("int4", {"group_size": 48}, "group_size=48: not one of 16, 32, 64, 128, 256"),
        ("int4", {"activations": "int8"}, "activations='int8'"),
        ("int8-dynamic", {"activations": "fp16"}, "precision=int8-dynamic"),
    ],
)
def test_a_precision_that_is_none_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        export_precision(name, **options)


def test_bf16_is_computed_in_fp32_where_there_are_no_such_products(tmp_path):
    config = preset("tiny-decoder", {"tie_word_embeddings": True})
    model, origin = reference(config, "random")
    made = build(config, tmp_path / "build", "bf16", (32,), model, origin)
    engine = OnnxRuntimeEngine(made, 32)
    verdict = verify(made, engine, model, steps=8)
    assert verdict.passed, verdict.problems
    assert 1e-3 < verdict.worst_logits < verdict.tolerance  # weights and cache are rounded to 8 bits
    assert engine.new_cache(1)[0].dtype == made.precision.numpy
    assert [row for row in exact(made, engine) if not row.passed] == []
