"""Questions that people asked in public about FLOPs, with the right answers: see test_public_reports."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from archcalc import Request, preset, report
from archcalc.cli import main
from archcalc.config import Attention, Block, FeedForward, ModelConfig, Norm, Stack
from archcalc.cost import costs, passes
from archcalc.dims import Mask, pairs
from archcalc.hf import config_from_keys
from archcalc.training import Step, flops

CONFIGS = json.loads((Path(__file__).parent / "data" / "public_configs.json").read_text())
LLAMA2_7B, LLAMA3_8B = (config_from_keys(CONFIGS[name]) for name in ("llama2-7b", "llama3-8b"))
MIXTRAL = preset("mixtral-8x7b")


def test_c46_attention_of_a_call():
    """Two products of 64 x 64 pairs for 12 heads of 64."""
    block = Block(Attention(12, 12, 64, causal=False), None, Norm("layernorm", 1e-5))
    config = ModelConfig(10, 768, 64, None, encoder=Stack((block,), None))
    run = passes(config, 1, 64, 64)[0]
    by_name = {line.op.name: cost.flops for line, cost in zip(run.bound.lines, costs(run), strict=True)}
    assert by_name["self_attn.scores"] + by_name["self_attn.context"] == 12_582_912


def test_c47_an_encoder_layer():
    block = Block(Attention(4, 4, 16, causal=False), FeedForward(256, "relu"), Norm("layernorm", 1e-5), "post")
    config = ModelConfig(10, 64, 16, None, encoder=Stack((block,), None))
    run = passes(config, 1, 16, 16)[0]
    flops_of = {line.op.name: cost.flops for line, cost in zip(run.bound.lines, costs(run), strict=True)}
    attention = flops_of["self_attn.scores"] + flops_of["self_attn.context"]
    of_block = sum(flops_of.values()) - flops_of["lm_head"]
    assert (of_block - attention, attention, of_block) == (1_572_864, 65_536, 1_638_400)


def test_c48_a_causal_rectangle():
    """4 queries at the end of 10 keys, widths 8 and 16: the reported tool halves the square, we count its diagonal."""
    seen = pairs({"T": 4, "S": 10}, Mask(True, None))
    assert seen == 4 * 6 + 4 * 5 // 2
    assert 2 * (8 + 16) * seen == 1_632
    assert 2 * (8 + 16) * Fraction(2 * seen - 4, 2) == 1_536  # half of the square instead: minus half its diagonal


def test_c50_a_multiply_add_is_two_flops(capsys):
    whole, half = (report(LLAMA2_7B, Request(macs=macs)) for macs in (False, True))
    for one, other in zip(whole["passes"], half["passes"], strict=True):
        assert one["flops"] == 2 * other["macs"]
        assert [part["flops"] for part in one["parts"]] == [2 * part["macs"] for part in other["parts"]]
    assert main(["report", "--preset", "llama3-8b", "--macs"]) == 0
    text = capsys.readouterr().out
    assert "prefill MACs" in text
    assert "FLOPs" not in text.replace("half the FLOPs", "")
    assert main(["report", "--preset", "llama3-8b", "--macs", "--format", "json"]) == 0
    assert "flops" not in json.dumps(json.loads(capsys.readouterr().out))


def test_c51_training_causal_and_dense():
    found = flops(LLAMA2_7B, Step(4, 8192, recompute="none"))
    assert found["products"] == 6 * 6_607_077_376 * 4 * 8192
    assert f"{found['products'] / 1e12:.2f}" == "1299.00"
    assert found["attention_dense"] == 12 * 32 * 4096 * 8192**2 * 4
    assert f"{found['attention_dense'] / 1e12:.2f}" == "422.21"
    assert f"{found['attention_halved'] / 1e12:.2f}" == "211.11"
    assert found["attention_causal"] == found["attention_dense"] * 8193 // (2 * 8192)  # each query sees itself


def test_c51_training_of_latent_attention():
    config = config_from_keys(CONFIGS["deepseek-v2-lite"])
    found = flops(config, Step(4, 8192, recompute="none"))
    assert found["attention_dense"] == 6 * 27 * 16 * (192 + 128) * 8192**2 * 4
    assert f"{found['attention_dense'] / 1e12:.2f}" == "222.65"
    assert f"{found['attention_halved'] / 1e12:.2f}" == "111.33"
    assert f"{found['products'] / 1e12:.2f}" == "481.95"


def test_c52_training_of_a_mixture():
    found = flops(MIXTRAL, Step(1, 1024, recompute="none"))
    active = 12_879_925_248 - 131_072_000 - 65 * 4096
    assert found["dense"] == 6 * active * 1024 + 12 * 32 * 4096 * 1024**2
    assert f"{found['dense'] / 1e12:.2f}" == "79.98"


def test_c54_attention_is_twelve_a_token():
    layers, heads, width, tokens = 32, 32, 128, 512
    found = flops(LLAMA2_7B, Step(1, tokens, recompute="none"))
    assert found["attention_dense"] == 12 * layers * heads * width * tokens * tokens
    assert found["attention_halved"] == 6 * layers * heads * width * tokens * tokens


@pytest.mark.parametrize(("config", "ffn"), [(LLAMA2_7B, 11008), (LLAMA3_8B, 14336)])
def test_c55_a_gated_feed_forward(config, ffn):
    run = passes(config, 1, 64, 64)[0]
    lines = zip(run.bound.lines, costs(run), strict=True)
    assert sum(cost.flops for line, cost in lines if line.op.name.startswith("mlp.")) == 6 * 64 * 4096 * ffn
