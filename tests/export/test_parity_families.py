"""Graphs of the parity families: those that can be expressed compute the model's numbers, the others are refused."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from export.build import build
from export.expressible import check_exportable
from export.files import ExportError
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from models.parity.checkpoints import tiny
from models.parity.compare import Pair

EXPRESSED = (
    "gpt2", "gpt_neox", "gpt_neox_serial", "llama_biases_tied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text",
    "olmo2", "phi3", "falcon", "falcon_new",
)  # fmt: skip
REFUSED = {
    "mixtral": "a mixture of experts", "deepseek_v3": "LatentAttention", "gpt_oss": "attention sinks",
    "falcon_alibi": "a bias by distance", "qwen3_next": "GatedDeltaNet", "mamba2": "a block of one sublayer",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSED)
def test_a_graph_computes_what_the_model_does(tmp_path, name):
    """With the weights of a transformers model, so that nothing in the block is the identity."""
    pair = Pair(*tiny(name))
    made = build(pair.config, tmp_path / "build", "fp32", (64,), pair.ours, {"kind": "random", "seed": 0})
    verdict = verify(made, OnnxRuntimeEngine(made, 64), pair.ours, steps=8)
    assert verdict.problems == []
    assert verdict.tokens == verdict.tokens_agreed > 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_without_a_graph_is_named(name):
    with pytest.raises(ExportError, match=REFUSED[name]):
        check_exportable(Pair(*tiny(name)).config)
