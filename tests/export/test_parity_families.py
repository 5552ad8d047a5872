"""Graphs of the parity families: they compute the model's numbers, in as many FLOPs as the calculator derives."""

import functools
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from archcalc.cost import Pass, bound, parameters, total
from archcalc.presets import preset
from export.build import build
from export.engine_layers import expected_layers, layers_by_type
from export.expressible import check_exportable
from export.files import ExportError
from export.generate import greedy
from export.graph_count import count_flops, count_parameters
from export.onnx_from_torch import Tracer
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from models import build as random_model
from models.generate import greedy as model_greedy
from models.parity.checkpoints import tiny
from models.parity.compare import Pair

EXPRESSED = (
    "gpt2", "gpt_neox", "llama_biases_tied", "mistral", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "falcon",
    "falcon_new", "falcon_alibi", "gptj", "opt_post_norm", "gpt_oss", "mixtral", "deepseek_v3", "qwen3_next", "mamba2",
    "nemotron_h",
)  # fmt: skip
CAPACITY = 64


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a family to a pair of models and the build of ours, made once."""

    @functools.cache
    def of(name):
        pair, out = Pair(*tiny(name)), tmp_path_factory.mktemp(name) / "build"
        return pair, build(pair.config, out, "fp32", (CAPACITY,), pair.ours, {"kind": "random", "seed": 0})

    return of


@pytest.mark.parametrize("name", EXPRESSED)
def test_a_graph_computes_what_the_model_does_in_as_many_flops(exported, name):
    """With the weights of a transformers model, so that nothing in the block is the identity."""
    pair, made = exported(name)
    verdict = verify(made, OnnxRuntimeEngine(made, CAPACITY), pair.ours, steps=8)
    assert verdict.problems == []
    assert verdict.tokens == verdict.tokens_agreed > 0
    for batch, tokens in ((2, 5), (3, 1)):
        run = Pass("any", {"B": batch, "T": tokens, "S": CAPACITY, "R": 1}, bound(pair.config)[1])
        sizes = {"batch": batch, "tokens": tokens, "logit_positions": 1}
        assert count_flops(made.graph(CAPACITY), sizes) == total(run, dense=True).flops
    assert count_parameters(made.graph(CAPACITY)) == parameters(pair.config)


@pytest.mark.parametrize("name", EXPRESSED)
def test_tensorrt_parses_the_same_graph_and_keeps_its_layers_whole(exported, name):
    pytest.importorskip("tensorrt_rtx", reason='needs TensorRT-RTX: pip install "archcalc[trt-rtx]"')
    from engines import Parsed

    pair, made = exported(name)
    layers = layers_by_type(Parsed(made, CAPACITY).network)
    assert {kind: layers[kind] for kind in expected_layers(pair.config)} == expected_layers(pair.config)


def test_values_and_streams_of_other_layers(tmp_path):
    """Keys that no family of transformers has: value residuals, skips between mirrored layers, DeepNorm."""
    keys = {"value_residual": True, "unet_residual": True, "deepnorm": True, "num_hidden_layers": 5}
    config = preset("tiny-decoder", keys)
    model, generator = random_model(config), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    made = build(config, tmp_path / "build", "fp32", (CAPACITY,), model, {"kind": "random", "seed": 0})
    assert verify(made, OnnxRuntimeEngine(made, CAPACITY), model, steps=8).problems == []


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next"])
def test_a_trace_does_not_depend_on_those_before_it(name):
    """Of a recurrence in two formats in turn."""
    config = Pair(*tiny(name)).config
    kinds = (torch.float32, torch.bfloat16, torch.float32)
    first, _, again = ([f.proto for f in Tracer(config, kind, CAPACITY).functions().every] for kind in kinds)
    assert first == again


def test_a_part_without_a_graph_is_named():
    config = preset("tiny-decoder", {"value_residual": True})
    first = replace(config.decoder, layers=config.decoder.layers[1:])  # its first attention has none before it
    with pytest.raises(ExportError, match="a value residual without an attention before it"):
        check_exportable(replace(config, decoder=first))


def test_unequal_prompts_of_a_recurrent_model(tmp_path):
    """They are padded in front, for its state cannot take back what it has read."""
    pair = Pair(*tiny("mamba2"))
    made = build(pair.config, tmp_path / "build", "fp32", (CAPACITY,), pair.ours, {"kind": "random", "seed": 0})
    assert made.pads_in_front
    prompts = [[5, 9, 3, 30, 7], [8], [11, 2, 40]]
    assert greedy(OnnxRuntimeEngine(made, CAPACITY), prompts, 9) == model_greedy(pair.ours, prompts, 9)
