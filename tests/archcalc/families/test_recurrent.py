"""Recurrent and hybrid families against transformers: parameters and stored buffers of real sizes and of toys that flip
each key that changes a shape; the state of the toys; what is refused.
"""

import json
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.cost import Bound, Pass, active_parameters, bound, buffers, cache_elements, parameters, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys, load_config, parse_json

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
TOYS = json.loads((DATA / "recurrent_toys.json").read_text())
RELEASES = json.loads((DATA / "recurrent_releases.json").read_text())["models"]
TRUTH = {name: row for name, row in RELEASES.items() if "parameters" in row}
FILES = sorted([*(DATA / "configs").glob("qwen3.[56]*.json"), *(DATA / "configs").glob("nemotron-[3h]*.json")])
FIRST = {keys["model_type"]: keys for keys in reversed(TOYS)}
# transformers cannot run a bamba without attention, nor a recurrence that is not as wide as the model
RUN = [k for k in TOYS if k.get("lru_width", 64) == 64 and k.get("attn_layer_indices", 1) is not None]


def ident(keys: dict) -> str:
    return f"{keys['model_type']} {TOYS.index(keys)}"


def step(config):
    return bound(config)[1]


def check(keys: dict) -> None:
    """The decays that transformers stores with lightning attention are computed here, from the number of a head."""
    config, oracle = config_from_keys(keys), counted(built(keys))
    oracle["buffers"] *= keys["model_type"] != "minimax"
    assert (parameters(config), buffers(config)) == (oracle["language_model"], oracle["buffers"])


@pytest.mark.parametrize("keys", TOYS, ids=ident)
def test_parameters_of_toys(keys):
    check(keys)


@pytest.mark.parametrize("name", RELEASES)
def test_parameters_of_releases(name):
    check(RELEASES[name]["config"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_parameters_of_published_files(file):
    check(parse_json(file.read_text()))


@pytest.mark.parametrize("name", TRUTH)
def test_totals_that_others_counted(name):
    row = TRUTH[name]
    config = config_from_keys(row["config"])
    held = cache_elements(step(config), 1, 1)
    assert (parameters(config), active_parameters(config)) == (row["parameters"], row["active"])
    assert (held.cache, held.state) == (row["per_token"], row.get("state", held.state))


def test_what_is_left_out_is_named():
    left_out = load_config(DATA / "configs" / "nemotron-3.5-lightning.json").left_out
    assert left_out == ("1 layer that predicts further tokens (num_nextn_predict_layers)",)
    tower, ahead = load_config(DATA / "configs" / "qwen3.6-27b-nvfp4.json").left_out
    assert "vision_config" in tower and "mtp_num_hidden_layers" in ahead


def kept_by(keys: dict, tokens: int) -> tuple[int, int]:
    """(keys and values, states) in elements that transformers keeps after so many tokens of 2 sequences."""
    rest = {name: value for name, value in keys.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(keys["model_type"], **rest)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    own_kind = keys["model_type"] == "minimax"
    cache = None if own_kind else transformers.DynamicCache(config=config)
    with torch.no_grad():
        out = model(torch.full((2, tokens), 5), cache=cache, use_cache=True)
    cache = out["past_key_values"] if own_kind else cache
    own, state = 0, 0
    for layer in cache.layers:
        for name in ("keys", "values"):
            held = getattr(layer, name, None)
            own += held.numel() if held is not None else 0
        for name in ("conv_states", "recurrent_states"):
            held = getattr(layer, name, None) or {}
            state += sum(one.numel() for one in (held.values() if isinstance(held, dict) else held) if one is not None)
    state += sum(one.numel() for one in getattr(cache, "linear_cache", []) if isinstance(one, torch.Tensor))
    for module in model.modules():  # recurrent_gemma keeps its states in its modules
        if hasattr(module, "conv1d_state"):
            state += module.conv1d_state.numel() + module.rg_lru.recurrent_states.numel()
    return own, state


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("keys", RUN, ids=ident)
def test_cache_and_state_of_toys(keys):
    held = cache_elements(step(config_from_keys(keys)), 2, 9)
    assert (held.cache, held.state) == kept_by(keys, 9)


@pytest.mark.parametrize("keys", FIRST.values(), ids=ident)
def test_a_recurrent_layer_costs_the_same_at_any_context(keys):
    config = config_from_keys(keys)
    held = {cache_elements(step(config), 3, context).state for context in (1, 7, 1000)}
    assert len(held) == 1 and held != {0}
    lines = [line for line in step(config).lines if ".mixer." in line.name and "self_attn" not in line.name]
    mixers = Bound(lines, step(config).monomials)

    def flops(tokens: int, context: int) -> int:
        return total(Pass("", {"B": 2, "T": tokens, "S": context, "R": tokens}, mixers)).flops

    assert flops(5, 5) == flops(5, 99) == 5 * flops(1, 1) > 0


@pytest.mark.parametrize(
    ("model_type", "change", "named"),
    [
        ("mamba", {"rms_norm": False}, "rms_norm"),
        ("mamba", {"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg"),
        ("mamba2", {"expand": 3}, "expand x hidden_size"),
        ("mamba2", {"intermediate_size": 100}, "intermediate_size"),
        ("jamba", {"attn_layer_offset": 9}, "attn_layer_offset"),
        ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms"),
        ("bamba", {"mamba_d_head": 3}, "mamba_expand x hidden_size"),
        ("falcon_h1", {"mamba_d_ssm": 100}, "mamba_d_ssm"),
        ("lfm2", {"conv_dim": 32}, "hidden_size"),
        ("recurrent_gemma", {"lru_width": 66}, "num_attention_heads"),
        ("recurrent_gemma", {"intermediate_size": 97}, "intermediate_size"),
        ("nemotron_h", {"hybrid_override_pattern": "M*-X"}, "hybrid_override_pattern"),
        ("nemotron_h", {"layers_block_type": ["mamba"] * 4}, "hybrid_override_pattern"),
        ("nemotron_h", {"num_hidden_layers": 5}, "num_hidden_layers"),
        ("nemotron_h", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("nemotron_h", {"attention_bias": True}, "attention_bias"),
        ("nemotron_h", {"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ("qwen3_next", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_next", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3_5_text", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_5_text", {"num_experts": 4}, "num_experts"),
        ("minimax", {"shared_intermediate_size": 8}, "shared_intermediate_size"),
        ("minimax", {"model_type": "minimax_m1"}, "attn_type_list"),
    ],
)
def test_what_would_change_a_shape_unseen_is_refused_by_name(model_type, change, named):
    with pytest.raises(ConfigError, match=f"^{named}"):
        config_from_keys(FIRST[model_type] | change)


@pytest.mark.parametrize("model_type", ["minimax_text_01", "minimax_m1"])
def test_the_first_spelling_of_minimax(model_type):
    keys = TRUTH["minimax-text-01"]["config"]
    full = [int(kind == "full_attention") for kind in keys["layer_types"]]
    old = {"model_type": model_type, "attn_type_list": full, "layer_types": None, "postnorm": True, "rotary_dim": 64}
    assert config_from_keys(keys | old) == config_from_keys(keys)


def test_absent_sizes_are_those_of_a_release_and_are_named():
    config = config_from_keys({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128})
    assert config.assumed == {"state_size": 16, "expand": 2, "conv_kernel": 4}


def test_infinity_stands_in_published_files_and_is_no_size():
    assert parse_json('{"time_step_limit": [0.0, Infinity]}') == {"time_step_limit": [0.0, float("inf")]}
    with pytest.raises(ConfigError, match="layer_norm_epsilon=inf"):
        config_from_keys(FIRST["mamba"] | {"layer_norm_epsilon": float("inf")})
