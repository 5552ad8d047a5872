"""`--target onnxruntime`: the same numbers by the runtime's own attention, and a clear no to what it cannot do."""

from collections import Counter

import numpy as np
import onnx
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from archcalc.errors import ConfigError
from archcalc.presets import preset
from export.build import build, open_build
from export.compare import exact
from export.files import ExportError
from export.generate import greedy
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from models.generate import greedy as greedy_torch
from models.parity.checkpoints import tiny
from models.parity.compare import Pair

FAMILIES = ("gpt2", "gpt_neox", "llama_biases_tied", "mistral", "qwen3", "gemma2", "gemma3_text", "phi3", "falcon")
ORIGIN = {"kind": "random", "seed": 0}


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
