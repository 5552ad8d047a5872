"""Families of mixtures of experts with ordinary attention, against transformers: parameters and stored buffers of
released configs and of toys that flip each key that changes a shape; FLOPs and caches of toys in an eager pass.
"""

import json
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.config import MixtureOfExperts
from archcalc.cost import Pass, active_parameters, bound, buffers, cache_elements, parameters, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

DATA = Path(__file__).parent.parent / "data"
MEASURED = json.loads((DATA / "moe.json").read_text())
RELEASED = (
    "qwen3-30b-a3b", "qwen3-coder-480b-a35b", "qwen3-vl-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "llama-4-maverick",
    "llama-4-scout", "minimax-m2.5", "minimax-m2.7-nvfp4", "mimo-v2-flash", "step-3.7-flash", "gemma-4-26b-a4b",
    "gemma-4-31b-it-nvfp4", "mixtral-8x7b", "mixtral-8x22b", "llama-3.1-70b-fp8", "glm-4.5",
)  # fmt: skip

FULL, SLIDING = "full_attention", "sliding_attention"
TOY = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 256, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
PAIR = {"num_experts_per_tok": 2}
NARROW = PAIR | {"moe_intermediate_size": 32}
FOUR, LOCAL, ROUTED = NARROW | {"num_experts": 4}, {"num_local_experts": 4}, NARROW | {"n_routed_experts": 4}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIASED, UNBIASED = {"attention_bias": True}, {"attention_bias": False}
ALTERNATING = ["sparse", "dense", "sparse", "dense"]
ROUTED_GEMMA = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
OWN_INPUTS = {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 100, "num_kv_shared_layers": 2}
WINDOWED_HEADS = {"attention_type": SLIDING, "num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16}
HUNYUAN_LISTS = {"moe_topk": [2] * 4, "num_shared_expert": [1] * 4, "moe_intermediate_size": [96] * 4}
MROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 4, 4], "mrope_interleaved": True}
HALF_TURNED = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
TWICE_WIDE = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}

# model_type -> (keys of the toy beside TOY's, changes that each make a variant)
TOYS = {
    "qwen2_moe": (
        FOUR | {"shared_expert_intermediate_size": 48},
        {"qkv_bias": False}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3]}, TIED,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, {"torch_dtype": "bfloat16"},
    ),
    "qwen3_moe": (
        FOUR | {"head_dim": 24},
        BIASED, {"decoder_sparse_step": 3, "mlp_only_layers": [2]}, {"use_sliding_window": True, "sliding_window": 8},
        TIED | {"rope_scaling": YARN}, {"rope_parameters": YARN | {"rope_theta": 1e6}, "dtype": "bfloat16"},
    ),
    "qwen3_vl_moe_text": (FOUR | {"head_dim": 24}, TIED | {"rope_parameters": MROPE}, UNTIED, {"mlp_only_layers": [1]}),
    "gpt_oss": (
        LOCAL | {"num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8},
        UNBIASED, {"layer_types": [FULL] * 4, **TIED}, {"experts_per_token": 4, "swiglu_limit": 7.0},
    ),
    "llama4_text": (
        LOCAL | {"head_dim": 16, "intermediate_size_mlp": 80, "attention_chunk_size": 8},
        {"interleave_moe_layer_step": 2}, {"moe_layers": [1]}, {"no_rope_layers": [1, 0, 1, 0], "use_qk_norm": False},
        BIASED | {"attention_chunk_size": None}, {"no_rope_layer_interval": 2, **TIED}, {"no_rope_layers": []},
        {"moe_layers": []}, {"layer_types": [FULL, "chunked_attention"] * 2},
    ),
    "mixtral": (LOCAL | PAIR, {"head_dim": 24, "sliding_window": 8}, TIED),
    "olmoe": (PAIR | {"num_experts": 4}, BIASED | {"num_key_value_heads": 4}, TIED | {"clip_qkv": 8.0}),
    "flex_olmo": (PAIR | {"num_experts": 4}, BIASED, TIED),
    "phimoe": (LOCAL, BIASED | {"lm_head_bias": True}, TIED | {"sliding_window": 8}),
    "granitemoe": (LOCAL, BIASED | TIED | {"num_key_value_heads": None, "logits_scaling": 8.0}),
    "granitemoeshared": (LOCAL | {"shared_intermediate_size": 48}, {"shared_intermediate_size": 0}),
    "glm4_moe": (
        ROUTED | {"n_shared_experts": 1, "first_k_dense_replace": 1},
        BIASED | {"use_qk_norm": True}, {"first_k_dense_replace": 0, "n_shared_experts": 2},
        {"first_k_dense_replace": 4, "head_dim": 24}, TIED | {"partial_rotary_factor": 0.5},
    ),
    "glm4v_moe_text": (ROUTED | {"rope_parameters": HALF_TURNED}, UNBIASED | {"head_dim": 24, "n_shared_experts": 2}),
    "solar_open": (ROUTED, BIASED | TIED | {"head_dim": 24, "n_shared_experts": 2}),
    "dots1": (
        ROUTED | {"n_shared_experts": 2, "first_k_dense_replace": 1},
        BIASED | {"first_k_dense_replace": 0}, {"sliding_window": 8, "max_window_layers": 2}, {"sliding_window": None},
    ),
    "ernie4_5_moe": (
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
        {"use_bias": True}, {"use_bias": True, "moe_num_shared_experts": 0}, {"moe_layer_interval": 2},
        {"moe_layer_start_index": 2}, UNTIED | {"moe_layer_end_index": 2, "moe_layer_start_index": 0},
    ),
    "hunyuan_v1_moe": ({"num_experts": 4, "moe_topk": 2, "head_dim": 16}, HUNYUAN_LISTS, BIASED | TIED),
    "minimax_m2": (LOCAL | {"num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8}, TIED, {"head_dim": 24}),
    "mimo_v2_flash": (
        ROUTED | {"head_dim": 24, "v_head_dim": 16, "sliding_window": 8},
        BIASED, {"layer_types": [SLIDING, FULL, FULL, SLIDING], "mlp_layer_types": ALTERNATING},
        TIED | {"sliding_window_size": 8, "hybrid_layer_pattern": [0, 1, 1, 1], "moe_layer_freq": [0, 1, 1, 1]},
    ),
    "step3p5": (
        ROUTED | {
            "share_expert_dim": 48, "head_dim": 16, "sliding_window": 8, "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "num_sliding_attention_heads": 6,
        },
        BIASED | {"moe_layers_enum": "1,2"}, {"mlp_layer_types": ["sparse"] * 4, "mlp_bias": True},
        {"num_sliding_attention_heads": None, "attention_other_setting": WINDOWED_HEADS},
        {"num_nextn_predict_layers": 2, "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING, SLIDING]},
        {"per_layer_config": {"1": {"num_attention_heads": 8}, "2": {"num_attention_heads": 8}}},
    ),
    "gemma4_text": (
        OWN_INPUTS | ROUTED_GEMMA | {
            "head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "layer_types": [SLIDING, FULL, SLIDING, FULL],
        },
        {"hidden_size_per_layer_input": 0}, {"enable_moe_block": False}, {"num_global_key_value_heads": 1},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0},
        BIASED | {"attention_k_eq_v": True}, TWICE_WIDE, TWICE_WIDE | {"enable_moe_block": False},
        UNTIED | {"layer_types": [SLIDING, FULL, SLIDING, SLIDING]},
        {"per_layer_config": {n: {"head_dim": 48, "num_key_value_heads": 1} for n in "13"}},
    ),
    "afmoe": (
        FOUR | {"head_dim": 16, "sliding_window": 8},
        BIASED, TIED | {"num_dense_layers": 2, "num_shared_experts": 1}, {"layer_types": [FULL] * 4},
    ),
    "exaone_moe": (
        FOUR | {"head_dim": 24, "sliding_window": 8},
        {"first_k_dense_replace": 2, "num_shared_experts": 2}, {"mlp_layer_types": ALTERNATING},
        TIED | {"sliding_window_pattern": 2},
        {"is_moe_layer": [False, True, True, True], "sliding_window_pattern": "LLLG", "layer_types": [FULL] * 4},
    ),
    "cohere2_moe": (
        {"num_experts": 4, "head_dim": 16, "sliding_window": 8, "num_shared_experts": 2},
        {"first_k_dense_replace": 2, "prefix_dense_intermediate_size": 48}, UNTIED | {"rms_norm_eps": 1e-6},
        BIASED | {"num_shared_experts": 0, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    ),
    "jetmoe": (
        LOCAL | {"kv_channels": 16, "num_attention_heads": ...},
        UNTIED | {"num_experts_per_tok": 1}, {"kv_channels": 24},
    ),
    "dbrx": (
        {
            "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 256,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        } | dict.fromkeys([name for name in TOY if name.startswith(("hidden", "num", "inter", "max"))], ...),
        {"attn_config": {"kv_n_heads": 4, "rope_theta": 1e4}}, {"ffn_config": {"ffn_hidden_size": 32}},
    ),
}  # fmt: skip
# Of text models without a class of their own.
COMPOSITES = {"step3p5": "step3p7", "qwen3_vl_moe_text": "qwen3_vl_moe", "glm4v_moe_text": "glm4v_moe"}


def toy(model_type: str, change: dict | None = None) -> dict:
    keys = {"model_type": model_type} | TOY | TOYS[model_type][0] | (change or {})
    return {name: value for name, value in keys.items() if value is not ...}


CASES = [toy(name, change) for name, (_, *changes) in TOYS.items() for change in ({}, *changes)]


def theirs(keys: dict):
    """The transformers model; a text model that has no class of its own inside its composite."""
    if outer := COMPOSITES.get(keys["model_type"]):
        tie = keys.get("tie_word_embeddings", outer == "qwen3_vl_moe")  # the flat class is tied by default
        return built({"model_type": outer, "text_config": keys, "tie_word_embeddings": tie})
    return built(keys)


def released(name: str) -> dict:
    return json.loads((DATA / "configs" / f"{name}.json").read_text())


def flops(config, batch: int, tokens: int, context: int, dense: bool, logits: int | None = None) -> int:
    dims = {"B": batch, "T": tokens, "S": context, "R": tokens if logits is None else logits}
    return total(Pass("", dims, bound(config)[1]), dense=dense).flops


def idle_experts(config, tokens: int) -> int:
    """FLOPs of the experts that a token is not sent to.

    Eager Llama 4 multiplies every token by every expert, its inputs zero where the router did not choose.
    """
    found = [block.mlp for block in config.decoder.layers if isinstance(block.mlp, MixtureOfExperts)]
    idle = sum((moe.num_local_experts - moe.num_experts_per_tok) * moe.expert.intermediate_size for moe in found)
    return idle * 3 * 2 * tokens * config.hidden_size


def limited(config) -> list:
    """The layers whose own cache forgets."""
    mixers = [block.self_attn for block in config.decoder.layers]
    return [a for a in mixers if (a.sliding_window or a.attention_chunk_size) and not a.shares_cache]


def cache_kept(config, batch: int, tokens: int) -> int:
    """Elements that transformers keeps: of a window one token less, since the next query is in it too."""
    a_token = [a.num_key_value_heads * (a.head_dim + (a.v_head_dim or a.head_dim)) for a in limited(config)]
    return cache_elements(bound(config)[1], batch, tokens).cache - batch * sum(a_token)


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_the_parameters_of_transformers(name):
    keys = released(name)
    found, config = counted(built(keys)), config_from_keys(keys)
    assert (parameters(config), buffers(config)) == (found["language_model"], found["buffers"])
    assert not config.assumed or name == "glm-4.5"  # whose keys come from a training script


@pytest.mark.parametrize("name", MEASURED["real"])
def test_total_active_and_cached_elements_of_released_models(name):
    config, row = config_from_keys(released(name)), MEASURED["real"][name]
    assert (parameters(config), active_parameters(config)) == (row["parameters"], row["active"])
    assert cache_elements(bound(config)[1], 1, 1).cache == row["kv_elements_per_token"]


@pytest.mark.parametrize("keys", CASES, ids=lambda keys: keys["model_type"])
def test_toys_have_the_parameters_of_transformers(keys):
    found, config = counted(theirs(keys)), config_from_keys(keys)
    assert (parameters(config), buffers(config)) == (found["language_model"], found["buffers"])


@pytest.mark.parametrize("name", TOYS)
def test_toys_multiply_and_keep_what_eager_transformers_does(name):
    from torch.utils.flop_counter import FlopCounterMode

    keys, model = toy(name), theirs(toy(name))
    model = model.model.language_model if name in COMPOSITES else model  # without a head, and without towers
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = type(model)._from_config(model.config, **how).eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        cache = model(input_ids=torch.arange(2, 18)[None], use_cache=True).past_key_values
    config = config_from_keys(keys)
    more = idle_experts(config, 16) if name == "llama4_text" else 0
    logits = 0 if name in COMPOSITES else 16
    assert flops(config, 1, 16, 16, dense=True, logits=logits) + more == counter.get_total_flops()
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers if layer.keys is not None)
    assert cache_kept(config, 1, 16) == kept


@pytest.mark.parametrize("name", MEASURED["small"])
def test_measured_passes_and_caches(name):
    row = MEASURED["small"][name]
    config = config_from_keys(row["config"])
    assert parameters(config) == row["parameters"]
    idle = idle_experts(config, 1) if name.startswith("llama4") else 0  # a token
    for batch, tokens in ((1, 16), (2, 64)):
        every = idle * batch * tokens
        assert flops(config, batch, tokens, tokens, dense=True) + every == row["flops"][f"{batch}x{tokens}"]
        assert cache_kept(config, batch, tokens) == row["cache"][f"{batch}x{tokens}"]
        # The first token of a chunk sees itself alone; eager code multiplies all keys of its cache.
        chunked = [a for a in limited(config) if a.attention_chunk_size]
        more = sum(4 * batch * a.num_attention_heads * a.head_dim * (a.attention_chunk_size - 1) for a in chunked)
        later = row["flops"][f"decode1_after_{batch}x{tokens}"] - idle * batch
        assert flops(config, batch, 1, tokens + 1, dense=False) + more == later


def test_unequal_blocks_by_hand():
    keys = released("nemotron-super-49b")
    hidden, heads, found = keys["hidden_size"], keys["num_attention_heads"], 0
    for block in keys["block_configs"]:
        width = -(-int(2 * block["ffn"]["ffn_mult"] * hidden / 3) // 256) * 256
        found += 3 * hidden * width + hidden
        if not block["attention"]["no_op"]:
            groups = heads // block["attention"]["n_heads_in_group"]
            found += 2 * hidden * hidden + 2 * hidden * groups * (hidden // heads) + hidden
    assert parameters(config_from_keys(keys)) == found + 2 * keys["vocab_size"] * hidden + hidden == 49_867_145_216


def test_layers_that_predict_further_tokens_are_named():
    for name, key in (("minimax-m2.5", "num_mtp_modules"), ("step-3.7-flash", "num_nextn_predict_layers")):
        assert f"3 layers that predict further tokens ({key})" in config_from_keys(released(name)).left_out
    one = config_from_keys(toy("glm4_moe", {"num_nextn_predict_layers": 1}))
    assert one.left_out == ("1 layer that predicts further tokens (num_nextn_predict_layers)",)


REFUSED = [
    ("qwen3_moe", {"shared_expert_intermediate_size": 32}, "shared_expert_intermediate_size"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
    ("qwen2_moe", {"layer_types": [SLIDING] * 4}, "use_sliding_window"),
    ("llama4_text", {"layer_types": ["chunked_attention"] * 4, "attention_chunk_size": None}, "attention_chunk_size"),
    ("hunyuan_v1_moe", {"moe_topk": [1, 2, 2, 2]}, "num_experts_per_tok"),
    ("hunyuan_v1_moe", {"moe_intermediate_size": [32] * 4}, "moe_intermediate_size"),
    ("minimax_m2", {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
    ("mimo_v2_flash", {"n_shared_experts": 1}, "n_shared_experts"),
    ("step3p5", {"moe_layers_enum": "1,two"}, "moe_layers_enum"),
    ("step3p5", {"attention_other_setting": WINDOWED_HEADS | {"head_dim": 8}}, "head_dim"),
    ("gemma4_text", {"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ("jetmoe", {"num_attention_heads": 5}, "num_attention_heads"),
]


@pytest.mark.parametrize(("model_type", "change", "key"), REFUSED)
def test_what_is_not_understood_is_refused_by_its_key(model_type, change, key):
    with pytest.raises(ConfigError, match=key):
        config_from_keys(toy(model_type, change))


def test_one_matrix_in_place_of_a_sublayer_is_refused():
    keys = released("nemotron-super-49b")
    keys["block_configs"][3]["attention"]["replace_with_linear"] = True
    with pytest.raises(ConfigError, match=r"block_configs\[3\]\.attention\.replace_with_linear"):
        config_from_keys(keys)
