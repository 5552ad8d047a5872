"""Numbers of published models, and FLOPs counted in another implementation. None was made by this program."""

import json
import re
from pathlib import Path

import pytest

from archcalc.cost import Pass, active_parameters, bound, buffers, cache_elements, costs, parameters, passes, total
from archcalc.counts import parameter_counts
from archcalc.hf import config_from_keys
from archcalc.presets import preset
from archcalc.report import parameter_rows, per_block

DATA = Path(__file__).parent / "data"
ARCHITECTURES = json.loads((DATA / "architectures.json").read_text())
SMALL = json.loads((DATA / "small_flops.json").read_text())["models"]


# What a row of parameters belongs to, by the name of the op; the first that fits.
KINDS = (
    ("norm_qk", r"\.(q|k|q_a|kv_a)_norm$"),
    ("norm", r"norm$"),
    ("linear_attn_or_ssm", r"\.mixer\."),
    ("attn_cross", r"\.cross_attn\."),
    ("attn", r"\.self_attn\."),
    ("router", r"\.mlp\.router$"),
    ("ffn_routed_expert", r"\.mlp\.experts\."),
    ("ffn_shared_expert", r"\.mlp\.shared_expert"),
    ("ffn", r"\.mlp\."),
    ("conv_frontend", r"conv[12]$"),
    ("embed_pos", r"embed_positions$"),
    ("embed", r"embed_(tokens|types)$"),
    ("pooler", r"^pooler$"),
    ("head", r"^(lm_head|transform\.dense)$"),
)


def split(config) -> dict[str, int]:
    """Parameters by the kind of module that owns them."""
    found: dict[str, int] = {}
    for row in parameter_rows(config):
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, row["name"]))
        found[kind] = found.get(kind, 0) + row["total"]
    return found


def stored_sinusoids(config) -> int:
    """Marian in transformers stores its sinusoids, a table a stack, as parameters; here they are computed."""
    if config.keys["model_type"] != "marian":
        return 0
    return len(config.stacks) * config.max_position_embeddings * config.hidden_size


def untied_head(config, row) -> int:
    """Of a T5 whose config says that the head is not tied, which transformers 5 ties whatever it says."""
    return row["checkpoint_untied"] - row["parameters"] if "checkpoint_untied" in row else 0


# The row's split goes by module names and takes lightning attention's output gates, 70 layers of hidden_size times
# heads, for routers; a router is hidden_size x 32 in each of 80 layers. Its total holds.
RIGHT_SPLIT = {
    "minimax-text-01": {
        "attn": 10 * (2 * 6144 * 8192 + 2 * 6144 * 1024),
        "linear_attn_or_ssm": 70 * 5 * 6144 * 8192,
        "router": 80 * 6144 * 32,
    }
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_of_published_models(name):
    row = ARCHITECTURES[name]
    config = config_from_keys(row["config"])
    more = untied_head(config, row) - stored_sinusoids(config)
    assert parameters(config) == row["parameters"] + more
    assert active_parameters(config) == row["active"] + more
    without = parameter_counts(config)["without input embedding"]["active"]
    if "checkpoint_untied" not in row and config.encoder is None:  # what is shared with a head stays in
        assert without == row["active_without_input_embedding"]
    found = split(config)
    if "checkpoint_untied" in row:
        assert found.pop("head") == more == config.vocab_size * config.hidden_size
    if more < 0:
        found["embed_pos"] = -more
    assert found == row["split"] | RIGHT_SPLIT.get(name, {})
    assert sum(row["split"].values()) == row["parameters"]
    if "buffers" in row:
        assert buffers(config) == row["buffers"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_token_of_published_models_leaves_behind(name):
    row = ARCHITECTURES[name]
    config = config_from_keys(row["config"])
    step, kv = bound(config)[1], row["kv"]
    held = cache_elements(step, 1, 1, 1)
    assert held.cache == kv.get("per_token", kv.get("self_per_decoder_token"))
    assert held.cross == kv.get("cross_per_encoder_token", 0)
    if "const_state_per_linear_layer" in kv:
        assert held.state == kv["other_layers"] * sum(kv["const_state_per_linear_layer"].values())
    elif "const_state" in kv:
        assert held.state == kv["const_state"]
    elif not kv.get("other_layers"):  # else the row leaves a state out
        assert held.state == 0
    window = kv.get("window") or kv.get("window_all_layers")
    if window:
        layers = kv["windowed_layers"] if "windowed_layers" in kv else kv["full_layers"]
        full = kv["full_layers"] if "windowed_layers" in kv else 0
        long = cache_elements(step, 1, 3 * window).cache
        assert long == kv["per_layer"] * (layers * window + full * 3 * window)


def test_llama3_8b_to_the_last_parameter():
    config = preset("llama3-8b")
    per_layer = {row["name"].split(".")[-1]: row["per_layer"] for row in parameter_rows(config)}
    assert per_layer["q_proj"] == per_layer["o_proj"] == 16_777_216
    assert per_layer["k_proj"] == per_layer["v_proj"] == 4_194_304
    assert per_layer["gate_proj"] == per_layer["up_proj"] == per_layer["down_proj"] == 58_720_256
    assert per_layer["embed_tokens"] == per_layer["lm_head"] == 525_336_576
    assert per_layer["norm"] == 4_096
    assert per_block(parameter_rows(config)) == {
        "block": {"attention": 41_943_040, "feed_forward": 176_160_768, "norms": 8_192, "total": 218_112_000}
    }
    assert 32 * 218_112_000 == 6_979_584_000
    assert parameters(config) == 8_030_261_248


def test_llama3_8b_prefill_of_4096_tokens_in_the_blocks():
    """65.97 TFLOPs, every (query, key) pair counted."""
    run = passes(preset("llama3-8b"), 1, 4096, 4096)[0]
    by_line = list(zip(run.bound.lines, costs(run, dense=True), strict=True))
    of_a_layer = {line.op.name: cost.flops for line, cost in by_line}
    assert of_a_layer["self_attn.scores"] + of_a_layer["self_attn.context"] == 4 * 4096**3 == 274_877_906_944
    assert sum(of_a_layer[f"mlp.{m}_proj"] for m in ("gate", "up", "down")) == 6 * 4096**2 * 14336
    assert sum(of_a_layer[f"self_attn.{m}_proj"] for m in "qkvo") == 2 * 4096 * 41_943_040
    in_blocks = sum(line.count * cost.flops for line, cost in by_line if line.group.block)
    assert in_blocks == 32 * 2_061_584_302_080 == 65_970_697_666_560
    head, masked_pairs = 2 * 4096 * 525_336_576, 4096 * 4095 // 2
    assert total(run).flops == in_blocks + head - 32 * 2 * 2 * 4096 * masked_pairs


def test_gpt2_and_the_worksheet():
    assert parameters(preset("gpt2")) == 124_439_808
    assert per_block(parameter_rows(preset("gpt2")))["block"]["total"] == 7_087_872
    config = preset("worksheet-gpt")
    block = per_block(parameter_rows(config))["block"]
    attention, feed_forward = 4 * 512**2, 2 * 512 * 2048
    assert block["attention"] == attention + 4 * 512  # biases
    assert block["feed_forward"] == feed_forward + 2048 + 512
    assert (
        parameters(config) == 50257 * 512 + 1024 * 512 + 12 * (attention + feed_forward + 4 * 512 + 2560 + 2048) + 1024
    )


def step(config, B: int, T: int, S: int, X: int = 1) -> int:
    return total(Pass("", {"B": B, "T": T, "S": S, "R": T, "X": X}, bound(config)[1]), dense=True).flops


def first_pass(config, B: int, T: int) -> int:
    """A whole sequence; in an encoder-decoder T source and T target tokens."""
    encode = total(Pass("", {"B": B, "T": T, "S": T}, bound(config)[0]), dense=True).flops if config.encoder else 0
    return encode + step(config, B, T, T, X=T)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("shape", "B", "T"), [("1x16", 1, 16), ("2x64", 2, 64)])
def test_flops_counted_in_transformers(name, shape, B, T):
    """Eager attention multiplies every pair, so ours are counted dense.

    A mixture counts the router and the top-k experts of each token, exactly as here: the oracle runs an expert
    over its own tokens only. `decode1_after_1x16` is one token a sequence with a cache of 16: S = 17. The cache
    of a sliding window W keeps W - 1 tokens, so such a step sees W of them, which is what a mask would show.
    """
    row = SMALL[name]
    config = config_from_keys(row["config"])
    assert parameters(config) + stored_sinusoids(config) == row["parameters"]
    assert first_pass(config, B, T) == row["flops"][shape]
    if f"decode1_after_{shape}" in row["flops"]:
        one = Pass("", {"B": B, "T": 1, "S": T + 1, "R": 1}, bound(config)[1])
        assert total(one).flops == row["flops"][f"decode1_after_{shape}"]  # causal: one query sees the same keys


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("shape", "B", "T"), [("1x16", 1, 16), ("2x64", 2, 64)])
def test_cache_measured_in_transformers(name, shape, B, T):
    row = SMALL[name]
    config = config_from_keys(row["config"])
    own, cross, _ = cache_elements(bound(config)[1], B, T, T)
    measured = row["cache_elements"][shape]
    for attention in (block.self_attn for block in config.decoder.layers):
        if attention.sliding_window and attention.sliding_window <= T:
            # The logical cache holds the window; transformers drops the token that the next query will not see.
            own -= 2 * B * attention.num_key_value_heads * attention.head_dim
    if config.encoder:
        assert {"self": own, "cross": cross} == measured
    else:
        assert (own, cross) == (measured, 0)
