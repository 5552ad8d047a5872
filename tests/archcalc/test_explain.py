"""Every number of a report that is explained is the sum of its terms, and each term its formula's value."""

import json
import re
from pathlib import Path

import pytest

from archcalc.errors import ConfigError
from archcalc.explain import QUANTITIES
from archcalc.hf import config_from_keys
from archcalc.presets import names, preset
from archcalc.render import render
from archcalc.report import report
from archcalc.request import Request

SMALL = json.loads((Path(__file__).parent / "data" / "small_flops.json").read_text())["models"]
MODELS = [preset(name) for name in names()] + [config_from_keys(row["config"]) for row in SMALL.values()]
BERT = {"model_type": "bert", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2}
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
MAMBA = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8}
MAMBA |= {"conv_kernel": 4, "expand": 2, "time_step_rank": 4, "intermediate_size": 128}
MODELS += [config_from_keys(keys) for keys in (BERT, DEEPSEEK, MAMBA)]


def number(found: dict, quantity: str) -> int:
    """The same quantity in the report itself."""
    kv = found["kv_cache"]
    by_name = {
        "parameters": found["parameters"]["total"],
        "active": found["parameters"]["active"],
        "kv_cache": kv["bytes"] + kv.get("cross_bytes", 0),
        "state": kv.get("state_bytes", 0),
        "weight_bytes": found["weight_bytes"]["int4"],
    }
    return (by_name | {run["name"]: run[found["unit"].lower()] for run in found["passes"]})[quantity]


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("options", [{}, {"dense": True}, {"macs": True, "latent": "expanded"}])
def test_the_terms_add_up_to_the_number(quantity, options):
    asked = 0
    for config in MODELS:
        request = Request(3, 20, 30, "int4", "fp8", explain=quantity, **options)
        try:
            found = report(config, request)
        except ConfigError:
            assert quantity in ("encode", "prefill", "decode")  # not a pass of this model
            continue
        asked += 1
        explained = found["explain"]
        assert explained["total"] == number(found, quantity), config
        assert explained["sum"] == sum(term["total"] for term in explained["terms"])
        for term in explained["terms"]:
            assert term["total"] == term["one"] * term["layers"]
            products = re.sub(r"[^0-9·+ ]", "", term["values"]).replace("·", "*")
            assert eval(products) == term["one"], term
    assert asked > 3


def test_letters_are_explained():
    found = report(preset("mixtral-8x7b"), Request(explain="active"))["explain"]
    assert {"D", "A", "F"} <= found["legend"].keys()
    assert "E" in found["legend"] and found["terms"][8]["formula"] == "A·D·F"
    text = render(report(preset("mixtral-8x7b"), Request(explain="active")))
    assert "active = 12,879,925,248 parameters" in text
    assert "D  hidden_size" in text


def test_masks_are_named():
    terms = report(preset("llama3-8b"), Request(explain="prefill"))["explain"]["terms"]
    scores = next(term for term in terms if term["name"].endswith("scores"))
    assert scores["formula"] == "2·B·K·G·H·pairs(T, S)"
    assert scores["values"] == f"2·1·8·4·128·{1024 * 1025 // 2:,}"


@pytest.mark.parametrize("quantity", ["encode", "size", ""])
def test_an_unknown_quantity_is_refused(quantity):
    with pytest.raises(ConfigError, match=r"explain='.*': not understood; use one of parameters, active"):
        report(preset("llama3-8b"), Request(explain=quantity))
