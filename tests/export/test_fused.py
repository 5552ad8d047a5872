"""`--target onnxruntime`: the same numbers by the runtime's own attention, and a clear no to what it cannot do."""

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from checkpoint_files import LLAMA, lively, write_safetensors
from onnx import numpy_helper

pytest.importorskip("transformers", reason="transformers is not installed")

from archcalc.errors import ConfigError
from archcalc.presets import preset
from export.build import build, open_build
from export.compare import exact
from export.files import ExportError
from export.generate import greedy
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.source import file_source
from export.verify import verify
from models.generate import greedy as greedy_torch
from models.parity.checkpoints import tiny
from models.parity.compare import Pair
from models.weights import checkpoint

FAMILIES = ("gpt2", "gpt_neox", "llama_biases_tied", "mistral", "qwen3", "gemma2", "gemma3_text", "phi3", "falcon")
ORIGIN = {"kind": "random", "seed": 0}


def tensors(path):
    """A graph's tensors by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def fused(config, model, out, precision="fp32", capacity=64):
    return build(config, out, precision, (capacity,), model, ORIGIN, target="onnxruntime")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_graph_computes_what_the_model_does(tmp_path, family):
    """Windows, soft caps, scales, QK-norms, partial rotary positions and none: with weights of transformers."""
    pair = Pair(*tiny(family))
    made = fused(pair.config, pair.ours, tmp_path / "build")
    kinds = Counter(n.op_type for f in onnx.load(made.graph(64), load_external_data=False).functions for n in f.node)
    assert kinds["GroupQueryAttention"] and not {"Attention", "TensorScatter"} & set(kinds)
    engine = OnnxRuntimeEngine(made, 64)
    verdict = verify(made, engine, pair.ours, steps=8)
    assert verdict.passed, verdict.problems
    assert [row for row in exact(made, engine) if not row.passed] == []


@pytest.mark.parametrize(
    ("family", "products", "norms"),
    [
        ("llama_biases_tied", 4, 1),  # queries with keys and values; output; gate with up; down
        ("falcon", 3, 0),  # its attention and its feed-forward network read the same norm
        ("gpt2", 4, 0),
        ("qwen2_moe", 4, 1),  # of a shared expert, its gate is a product of that input too, and read before the others
    ],
)
def test_products_of_one_input_are_one(tmp_path, family, products, norms):
    pair = Pair(*tiny(family))
    made = fused(pair.config, pair.ours, tmp_path / "build")
    model = onnx.load(made.graph(64), load_external_data=False)
    block = next(function for function in model.functions if function.name == "Block0")
    kinds = Counter(node.op_type for node in block.node)
    assert (kinds["MatMul"], kinds["SkipSimplifiedLayerNormalization"]) == (products, norms)


def test_attention_splits_queries_keys_and_values_itself(tmp_path):
    made = fused(preset("tiny-decoder"), None, tmp_path / "build", capacity=32)
    block = next(f for f in onnx.load(made.graph(32), load_external_data=False).functions if f.name == "Block0")
    attention = next(node for node in block.node if node.op_type == "GroupQueryAttention")
    product = next(node for node in block.node if attention.input[0] in node.output)
    assert product.op_type == "MatMul" and list(attention.input[1:3]) == ["", ""]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8-dynamic", "int4"])
def test_weights_are_packed_in_whatever_order_they_come(tmp_path, precision):
    """A checkpoint has its tensors in the alphabet's order, and keys before queries."""
    model = lively()
    made = build(LLAMA, tmp_path / "a", precision, (16,), model, ORIGIN, target="onnxruntime")
    stored = file_source(checkpoint(write_safetensors(tmp_path / "m.safetensors", model), LLAMA))
    assert list(stored.weights) != [name for name, _ in model.named_parameters()]
    other = build(LLAMA, tmp_path / "b", precision, (16,), source=stored, target="onnxruntime")
    mine, theirs = (tensors(one.graph(16)) for one in (made, other))
    assert mine.keys() == theirs.keys() and any("|" in name for name in mine)
    for name, array in mine.items():
        assert np.array_equal(array, theirs[name]), name
    if precision == "fp32":
        layer = model.layers[1].self_attn
        name = "layers.1.(self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight)"
        rows = [layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]
        assert np.array_equal(mine[name], torch.cat(rows).numpy())


def test_unequal_prompts_decode_together(tmp_path):
    config = preset("tiny-decoder")
    model, _ = reference(config, "random")
    engine = OnnxRuntimeEngine(fused(config, model, tmp_path / "build", capacity=32), 32)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9], [250, 3, 17]]
    assert greedy(engine, prompts, 20) == greedy_torch(model, prompts, 20)


def test_what_the_operator_cannot_do_is_refused(tmp_path):
    config = preset("tiny-decoder")
    made = fused(config, None, tmp_path / "build", capacity=32)
    assert open_build(made.folder).manifest["target"] == "onnxruntime"
    engine = OnnxRuntimeEngine(made, 32)
    ids, every = np.ones((2, 3), int), np.tile(np.arange(3), (2, 1))
    with pytest.raises(ConfigError, match="begin in slot 0"):
        engine.run(ids, every - 1, np.zeros(2, int), every, engine.new_cache(2))
    with pytest.raises(ConfigError, match="one sequence at a time"):
        engine.run(ids, every + 4, np.full(2, 4), every, engine.new_cache(2))
    assert engine.run(ids[:1], every[:1] + 4, np.full(1, 4), every[:1], engine.new_cache(1)).shape[1] == 3


@pytest.mark.parametrize("family", ["falcon_alibi", "deepseek_v3", "t5"])
def test_a_model_that_asks_for_more_is_refused(tmp_path, family):
    pair = Pair(*tiny(family))
    with pytest.raises(ExportError, match=r"target=onnxruntime: .* give --target any"):
        fused(pair.config, pair.ours, tmp_path / "build")
    assert not (tmp_path / "build").exists()
