"""A report is plain data whose parts add up, and whose renderings say the same."""

import json

import pytest

from archcalc.cost import bound, cache_elements, parameters, passes, total
from archcalc.errors import ConfigError
from archcalc.presets import names, preset
from archcalc.render import render
from archcalc.report import Request, formula, report
from archcalc.units import bytes_both, duration, scaled


@pytest.fixture(scope="module", params=names())
def both(request):
    config = preset(request.param)
    asked = Request(batch=3, prompt=40, context=50, precision="fp8", kv_precision="fp16", device="h200")
    return config, report(config, asked)


def test_parts_add_up_to_totals(both):
    config, found = both
    rows = found["parameters"]["parts"]
    assert found["parameters"]["total"] == parameters(config) == sum(row["total"] for row in rows)
    assert all(row["total"] == row["per_layer"] * row["layers"] for row in rows)
    for run in found["passes"]:
        assert run["flops"] == sum(part["flops"] for part in run["parts"])
        assert run["bytes"] == sum(part["bytes"] for part in run["parts"])
        assert run["seconds"] == pytest.approx(sum(part["seconds"] for part in run["parts"]), rel=1e-12)
        assert run["intensity_flops_per_byte"] == run["flops"] / run["bytes"]
    for block in found["blocks"].values():
        assert block["total"] == block["attention"] + block["feed_forward"] + block["norms"]


def test_blocks_and_the_rest_add_up(both):
    _, found = both
    layers = {row["block"]: row["layers"] for row in found["parameters"]["parts"] if row["block"]}
    outside = sum(row["total"] for row in found["parameters"]["parts"] if not row["block"])
    inside = sum(layers[label] * block["total"] for label, block in found["blocks"].items())
    assert inside + outside == found["parameters"]["total"]


def test_the_numbers_are_those_of_the_op_list(both):
    config, found = both
    for row, run in zip(found["passes"], passes(config, 3, 40, 50), strict=True):
        assert (row["name"], row["flops"]) == (run.name, total(run).flops)
    own, cross, _ = cache_elements(bound(config)[1], 3, 50, 40)
    assert found["kv_cache"]["bytes"] == 2 * own  # fp16
    assert found["kv_cache"].get("cross_bytes", 0) == 2 * cross
    assert found["weight_bytes"]["fp32"] == 4 * parameters(config)
    assert found["weight_bytes"]["int4"] == -(-parameters(config) // 2)
    needed = found["weight_bytes"]["fp8"] + 2 * own + 2 * cross
    assert found["memory"] == {"needed_bytes": needed, "device_bytes": 141 * 10**9}


def test_a_request_is_repeated_with_the_numbers(both):
    config, found = both
    first = "source" if config.encoder else "prompt"
    shown = {"batch": 3, first: 40, "context": 50, "precision": "fp8", "kv_precision": "fp16", "device": "h200"}
    assert {key: found["request"][key] for key in shown} == shown


def test_json_round_trips(both):
    _, found = both
    assert json.loads(render(found, "json")) == found


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_tables_say_the_same(both, style):
    _, found = both
    text = render(found, style)
    assert f"{found['parameters']['total']:,} parameters" in text
    for row in found["parameters"]["parts"]:
        line = next(line for line in text.splitlines() if row["name"] in line.split())
        assert f"{row['per_layer']:,}" in line
        assert f"{row['total']:,}" in line
    for run in found["passes"]:
        assert f"{run['flops']:,}" in text
    for convention in found["conventions"].values():
        assert convention in text
    assert all(line == line.rstrip() for line in text.splitlines()) or style == "table"
    assert ("\n## " in f"\n{text}") == (style == "markdown")


def test_defaults_of_a_request():
    found = report(preset("gpt2"))
    assert (found["request"]["prompt"], found["request"]["context"]) == (1024, 1024)
    assert report(preset("tiny-decoder"))["request"]["prompt"] == 256  # all positions, where there are fewer
    assert report(preset("gpt2"), Request(prompt=10))["request"]["context"] == 10
    assert report(preset("gpt2"), Request(precision="fp32"))["request"]["kv_precision"] == "fp32"
    assert report(preset("gpt2"), Request(precision="int4"))["request"]["kv_precision"] == "bf16"


def test_conventions_follow_the_request():
    causal, dense = (report(preset("llama3-8b"), Request(dense=flag)) for flag in (False, True))
    assert causal["passes"][0]["flops"] < dense["passes"][0]["flops"]
    assert "causal" in causal["conventions"]["attention"]
    assert "dense" in dense["conventions"]["attention"]
    assert "the last position" in report(preset("llama3-8b"), Request(last_logits=True))["conventions"]["logits"]
    assert "experts" in report(preset("mixtral-8x7b"))["conventions"]
    assert "experts" not in causal["conventions"]
    assert "encode" in report(preset("transformer-base"))["conventions"]


def test_a_mixture_shows_active_parameters():
    found = report(preset("mixtral-8x7b"))
    assert found["parameters"]["active"] == 12_879_925_248
    assert "active a token" in render(found)
    assert "active a token" not in render(report(preset("llama3-8b")))


def test_formula_of_an_op_with_a_bias():
    lines = {line.op.name: line.op for line in bound(preset("gpt2"))[1].lines}
    assert formula(lines["self_attn.q_proj"]) == "D·N·H + N·H"
    assert formula(lines["self_attn.scores"]) == ""
    assert formula(lines["mlp_norm"]) == "D + D"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Request(device="h100"), r"device='h100': unknown .*h100-sxm"),
        (Request(precision="fp12"), "precision='fp12': not understood"),
        (Request(kv_precision="none"), "precision='none': not understood"),
        (Request(precision="fp8", device="a100-80gb-sxm"), "a100-80gb-sxm has no fp8 rate"),
        (Request(batch=0), "batch=0: must be a whole number"),
    ],
)
def test_what_cannot_be_answered_is_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        report(preset("llama3-8b"), asked)


def test_units_are_labelled_and_never_mixed():
    assert bytes_both(131_072) == "131,072 B = 131.1 kB = 128 KiB"
    assert bytes_both(2**30) == "1,073,741,824 B = 1.074 GB = 1 GiB"
    assert bytes_both(1023) == "1,023 B"
    assert scaled(65_970_697_666_560, "FLOPs") == "65.97 TFLOPs"
    assert scaled(999, "B") == "999 B"
    assert scaled(2.5e20, "FLOPs") == "250 EFLOPs"
    assert [duration(s) for s in (2.0, 0.0161, 4.5e-6)] == ["2 s", "16.1 ms", "4.5 us"]


@pytest.mark.parametrize(
    ("kind", "bits"), [("fp32", 32), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int8", 8), ("int4", 4)]
)
def test_keys_and_values_take_the_bits_of_their_own_format(kind, bits):
    asked = {"batch": 2, "prompt": 100, "context": 100}
    found = report(preset("llama3-8b"), Request(kv_precision=kind, **asked))
    elements = 32 * 2 * 8 * 128  # layers, keys and values, heads, head_dim
    assert found["kv_cache"]["bytes_per_token"] == elements * bits // 8
    assert found["kv_cache"]["bytes"] == 2 * 100 * elements * bits // 8
    plain = report(preset("llama3-8b"), Request(kv_precision="fp32", **asked))
    read_and_written = 2 * 101 * elements  # by a decode step: all are read, one is written
    moved = [run["passes"][1]["bytes"] for run in (plain, found)]
    assert moved[0] - moved[1] == read_and_written * (32 - bits) // 8
