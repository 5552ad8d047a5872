"""A report is plain data whose parts add up, and whose renderings say the same."""

import json

import pytest

from archcalc.cost import bound, cache_elements, parameters, passes, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.memory import Paged, reserved
from archcalc.precision import PRECISIONS
from archcalc.presets import names, preset
from archcalc.render import render
from archcalc.report import formula, report
from archcalc.request import Request
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
    own, cross, state = cache_elements(bound(config)[1], 3, 50, config.source_tokens(40))
    own = own if config.decoder else 0  # an encoder alone keeps nothing
    assert found["kv_cache"]["bytes"] == 2 * own  # fp16
    assert found["kv_cache"].get("cross_bytes", 0) == 2 * cross
    assert found["kv_cache"].get("state_bytes", 0) == 2 * state
    assert found["weight_bytes"]["fp32"] == 4 * parameters(config)
    assert found["weight_bytes"]["int4"] == -(-parameters(config) // 2)
    needed = found["weight_bytes"]["fp8"] + 2 * (own + cross + state)
    assert found["memory"] == {"needed_bytes": needed, "device_bytes": 141 * 10**9}


def test_a_request_is_repeated_with_the_numbers(both):
    config, found = both
    first = "source" if config.encoder and config.decoder else "prompt"
    tokens = config.source_tokens(40) if first == "source" else 40
    shown = {"batch": 3, first: tokens, "context": 50, "precision": "fp8", "kv_precision": "fp16", "device": "h200"}
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
        lines = [line.split() for line in text.splitlines() if row["name"] in line.split()]
        assert any({f"{row['per_layer']:,}", f"{row['total']:,}"} <= set(line) for line in lines)
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


def test_parts_are_told_apart(both):
    """A name and a kind of block: several kinds may have an op of one name, and a table has a row for each."""
    _, found = both
    text = render(found)
    for run in found["passes"]:
        keys = [(part["name"], part["block"]) for part in run["parts"]]
        assert len(keys) == len(set(keys))
        for name, block in keys:
            assert f"{name} ({block})" in text or f"\n{name} " in text


GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100, "sliding_window": 32,
    "max_position_embeddings": 4096, "query_pre_attn_scalar": 16,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "vocab_size": 100, "max_position_embeddings": 512, "num_nextn_predict_layers": 1,
}  # fmt: skip
BERT = {"model_type": "bert", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2}


@pytest.mark.parametrize("context", [32, 100, 4000])
def test_windows_leave_a_constant_and_a_slope(context):
    config = config_from_keys(GEMMA3)
    kv = report(config, Request(prompt=1, context=context))["kv_cache"]
    layer = 2 * 2 * 16 * 2
    assert (kv["bytes_per_token"], kv["slope_bytes_per_token"], kv["constant_bytes"]) == (
        6 * layer, layer, 5 * 32 * layer,
    )  # fmt: skip
    assert kv["bytes"] == kv["constant_bytes"] + context * kv["slope_bytes_per_token"]


def test_the_form_of_latent_attention_is_chosen_and_said():
    config = config_from_keys(DEEPSEEK | {"kv_lora_rank": 64})
    found = {form: report(config, Request(prompt=64, latent=form)) for form in (None, "absorbed", "expanded")}
    flops = {form: [run["flops"] for run in one["passes"]] for form, one in found.items()}
    assert flops[None] == [flops["expanded"][0], flops["absorbed"][1]]
    assert flops["absorbed"][0] > flops["expanded"][0] and flops["absorbed"][1] < flops["expanded"][1]
    assert "expanded in the prefill, absorbed in the decode" in found[None]["conventions"]["latent"]
    assert found["absorbed"]["conventions"]["latent"].startswith("latent attention is absorbed;")
    assert len({json.dumps(one["kv_cache"]) for one in found.values()}) == 1
    assert "latent" not in report(preset("llama3-8b"))["conventions"]
    with pytest.raises(ConfigError, match="latent='both': not understood; use one of None, absorbed, expanded"):
        report(config, Request(latent="both"))


def test_what_is_left_out_buffers_and_assumed_keys_are_shown():
    config = config_from_keys(DEEPSEEK)
    found = report(config)
    assert found["parameters"]["buffers"] == 8  # one layer's correction bias
    assert found["left_out"] == list(config.left_out) != []
    text = render(found)
    assert f"Left out: {config.left_out[0]}." in text
    assert "buffers, no parameters" in text
    short = {name: value for name, value in BERT.items() if name != "type_vocab_size"}
    found = report(config_from_keys(short))
    assert found["assumed"] == {"type_vocab_size": 2}
    assert "type_vocab_size=2" in render(found)
    assert "Assumed" not in render(report(preset("llama3-8b")))


def test_an_encoder_alone():
    found = report(config_from_keys(BERT), Request(batch=2, prompt=10, paged=Paged(room=1000)))
    assert [run["name"] for run in found["passes"]] == ["encode"]
    assert found["kv_cache"] == {"bytes_per_token": 0, "bytes": 0}
    assert found["reserved"]["fits"]["requests"] is None
    assert "encode" in render(found)


def test_a_state_is_a_row_of_its_own():
    keys = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8}
    keys |= {"conv_kernel": 4, "expand": 2, "time_step_rank": 4, "intermediate_size": 128}
    config = config_from_keys(keys)
    few, many = (report(config, Request(batch=3, prompt=10, context=n)) for n in (10, 10_000))
    assert few["kv_cache"] == many["kv_cache"]
    assert few["kv_cache"]["state_bytes_per_sequence"] == 2 * 2 * (128 * 4 + 128 * 8)
    assert few["kv_cache"]["state_bytes"] == 3 * few["kv_cache"]["state_bytes_per_sequence"]
    assert few["memory"]["needed_bytes"] == few["weight_bytes"]["bf16"] + few["kv_cache"]["state_bytes"]
    assert "recurrent state, the request" in render(few)
    assert "state" in few["conventions"]


def test_a_reserved_cache_is_shown_when_asked_for():
    asked = Request(batch=2, context=20_000, paged=Paged(tp=2, room_blocks=1952))
    found = report(preset("llama3-8b"), asked)
    assert found["reserved"] == reserved(preset("llama3-8b"), asked.paged, 2, 20_000, 0, PRECISIONS["bf16"])
    text = render(found)
    assert "1,952 of 16 = 31,232 tokens" in text
    assert "1.56x = 1" in text
    assert "each of 2 ranks" in text
    assert "reserved" not in report(preset("llama3-8b"))
    as_full = report(preset("llama3-8b"), Request(paged=Paged(windowed_as_full=True)))
    assert "the whole length" in as_full["conventions"]["reserved"]


def test_a_report_can_be_changed_without_changing_the_next():
    first = report(preset("mixtral-8x7b"))
    kept = json.dumps(first)
    first["parameters"]["conventions"]["all"]["total"] = 0
    first["parameters"]["parts"][0]["total"] = 0
    first["blocks"]["block"]["total"] = 0
    first["experts"].clear()
    first["conventions"].clear()
    assert json.dumps(report(preset("mixtral-8x7b"))) == kept


def test_what_a_counter_sees_is_asked_for_by_name():
    config = preset("mamba-130m")
    assert "eager_flops" not in report(config)
    found = report(config, Request(prompt=10, eager=True))
    assert set(found["eager_flops"]) == {"first_call", "later_token"}
    prefill = found["passes"][0]["flops"]
    taps, channels, layers = 4, 1536, 24
    assert found["eager_flops"]["first_call"] - prefill == 2 * layers * taps * channels * (taps - 1)  # padding
    assert "eager transformers" in render(found)
    assert found["conventions"]["eager"]
