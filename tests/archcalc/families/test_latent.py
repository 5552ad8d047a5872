"""Latent, sparse and compressed attention: parameters and stored buffers of real configs and of toys that flip each
key that changes a shape, against transformers on the meta device; what is refused, and by which key.
"""

import json
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.cost import active_parameters, bound, buffers, cache_elements, parameters
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

pytest.importorskip("torch")
pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
LATENT = json.loads((DATA / "latent.json").read_text())
REAL = {name: json.loads((DATA / "configs" / f"{name}.json").read_text()) for name in (
    "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4-flash-sgl", "kimi-k2-instruct", "kimi-k2.5",
    "glm-5", "glm-5.1", "glm-5.2", "glm-5.3-nvfp4", "minimax-m3", "minimax-m3-vl",
)}  # fmt: skip
# A model_type that transformers does not know, and the one that it has for the same keys.
SAME_KEYS = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl_text"}
M3_TEXT = ["MiniMaxM3VLForCausalLM"]

IDS = {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1}
DENSE = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128,
    "intermediate_size": 96, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "max_position_embeddings": 256,
} | IDS  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
KIMI = DENSE | {name: size for name, size in EXPERTS.items() if name != "n_routed_experts"} | {
    "model_type": "kimi_linear", "num_experts": 8, "num_hidden_layers": 5, "linear_num_heads": 3, "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
V4 = {
    "model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 16,
    "q_lora_rank": 24, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 8, "hc_mult": 2, "vocab_size": 100,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 256,
    "compress_ratios": [0, 128, 4, 4, 0, 0], "num_hash_layers": 1, "qk_rope_head_dim": 8,
} | INDEX | IDS  # fmt: skip
M3 = {
    "model_type": "minimax_m3_vl_text", "architectures": M3_TEXT, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "vocab_size": 100,
    "dense_intermediate_size": 96, "shared_intermediate_size": 40, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 256, "index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4,
    "index_topk_blocks": 2, "index_local_blocks": 1, "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3,
    "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
} | IDS  # fmt: skip


def toys(base: dict, *variants: dict) -> list[dict]:
    """The toy as it is, and with each variant; `...` takes a key away."""
    return [{k: v for k, v in (base | variant).items() if v is not ...} for variant in ({}, *variants)]


COMMON = (
    {"attention_bias": True, "tie_word_embeddings": True}, {"n_shared_experts": 1}, {"head_dim": 8},
    {"num_nextn_predict_layers": 1, "moe_layer_freq": 1}, {"qk_head_dim": 24, "dtype": "bfloat16"},
    {"rope_theta": 5e4, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
)  # fmt: skip
NO_RANK, FIRST = {"q_lora_rank": None}, ({"first_k_dense_replace": 0}, {"first_k_dense_replace": 2})
LISTED = {"first_k_dense_replace": ..., "mlp_layer_types": ["sparse", "dense", "sparse"]}
LOCAL, EIGHT = {"n_routed_experts": ..., "num_local_experts": 4}, {"n_routed_experts": ..., "num_experts": 4}
KINDS = ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"]
LISTS = {"full_attn_layers": [2, 5], "kda_layers": [1, 3, 4]}
DELTA = LISTS | {"num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 2}
RENAMED = {
    "num_experts": ..., "num_local_experts": 8, "n_shared_experts": ..., "num_shared_experts": 2,
    "num_experts_per_tok": ..., "num_experts_per_token": 2, "max_position_embeddings": ..., "model_max_length": 256,
    "linear_num_heads": ..., "linear_head_dim": ..., "linear_conv_kernel_dim": ..., "mla_use_nope": True,
}  # fmt: skip
V4_KINDS = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
RATES = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 32}
SPARSE_CONFIG = {
    "sparse_attention_freq": [0, 0, 1, 1], "sparse_index_dim": 32, "sparse_num_index_heads": 2, "sparse_topk_blocks": 3,
    "sparse_block_size": 8, "use_sparse_attention": True, "sparse_disable_index_value": [0, 0, 1, 1],
}  # fmt: skip
FLAT_INDEX = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks")

TOYS = [
    *toys(DENSE | EXPERTS | {"model_type": "deepseek_v2"}, *COMMON, *FIRST, NO_RANK, EIGHT, {"mlp_bias": True}),
    *toys(DENSE | EXPERTS | {"model_type": "deepseek_v3"}, *COMMON, *FIRST, NO_RANK, LOCAL),
    *toys(DENSE | EXPERTS | {"model_type": "axk1"}, *COMMON, *FIRST, LOCAL, LISTED),
    *toys(DENSE | EXPERTS | {"model_type": "sarvam_mla"}, *COMMON, *FIRST, NO_RANK, {"q_lora_rank": ...}, EIGHT, LOCAL,
          {"rope_scaling": {"type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 64}}),
    *toys(DENSE | EXPERTS | {"model_type": "mistral4"}, *COMMON, *FIRST, NO_RANK, LOCAL),
    *toys(DENSE | EXPERTS | {"model_type": "glm4_moe_lite"}, *COMMON, NO_RANK, LOCAL, LISTED),
    *toys(DENSE | EXPERTS | INDEX | {"model_type": "deepseek_v32"}, *COMMON, *FIRST, LOCAL, EIGHT, LISTED),
    *toys(DENSE | EXPERTS | INDEX | {"model_type": "glm_moe_dsa"}, *COMMON, *FIRST, LOCAL, EIGHT, LISTED,
          {"indexer_types": ["full", "shared", "full"]}, {"index_topk_pattern": "FSF"},
          {"index_topk_freq": 2, "index_skip_topk_offset": 1}, {"index_topk_freq": 3}),
    *toys(DENSE | {"model_type": "youtu"}, NO_RANK, {"attention_bias": True, "tie_word_embeddings": False}),
    *toys(DENSE | {"model_type": "minicpm3"}, NO_RANK, {"v_head_dim": ...}, {"tie_word_embeddings": False},
          {"attention_bias": True, "mlp_bias": True}),
    *toys(KIMI, NO_RANK, {"q_lora_rank": ...}, {"layer_types": KINDS}, RENAMED | {"linear_attn_config": DELTA},
          {"attention_bias": True}, {"mlp_layer_types": ["sparse"] * 5, "first_k_dense_replace": ...}),
    *toys(V4, {"compress_ratios": ...}, {"compress_ratios": ..., "layer_types": V4_KINDS + V4_KINDS[:2]},
          {"compress_rate_csa": 2, "compress_rate_hca": 16}, {"compress_rates": RATES},
          {"num_hash_layers": 0}, {"num_hash_layers": ...}, {"mlp_bias": True}, {"tie_word_embeddings": True},
          {"num_hash_layers": ..., "mlp_layer_types": ["moe", "hash_moe", "moe", "moe", "hash_moe"]}, {"hc_mult": 3},
          {"hc_mult": ...}, {"o_groups": 4, "o_lora_rank": 3}),
    *toys(M3, {"layer_types": ...}, {"mlp_layer_types": ...}, {"mlp_layer_types": ..., "moe_layer_freq": [0, 1, 1, 1]},
          {"layer_types": ..., "sparse_attention_config": SPARSE_CONFIG} | dict.fromkeys(FLAT_INDEX, ...),
          {"tie_word_embeddings": True}, {"hidden_act": "swigluoai"}),
]  # fmt: skip
RELEASED = ("axk1", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear",
            "minicpm3", "mistral4", "sarvam_mla", "youtu")  # fmt: skip


def oracle(keys: dict) -> tuple[int, int]:
    """(parameters, stored buffers) of the language model that transformers builds."""
    keys = keys | {"model_type": SAME_KEYS.get(keys["model_type"], keys["model_type"])}
    found = counted(built(keys | ({"architectures": M3_TEXT} if "minimax_m3_vl_text" in keys.values() else {})))
    return found["language_model"], found["buffers"]


def ours(keys: dict) -> tuple[int, int]:
    config = config_from_keys(keys)
    return parameters(config), buffers(config)


@pytest.mark.parametrize("name", REAL)
def test_real_configs(name):
    assert ours(REAL[name]) == oracle(REAL[name])


@pytest.mark.parametrize("keys", TOYS, ids=lambda keys: keys["model_type"])
def test_toys(keys):
    assert ours(keys) == oracle(keys)


@pytest.mark.parametrize("model_type", RELEASED)
def test_absent_sizes_are_those_of_the_released_model(model_type):
    keys = {"model_type": model_type}
    assert ours(keys) == oracle(keys)
    assert {"hidden_size", "vocab_size", "num_hidden_layers"} <= config_from_keys(keys).assumed.keys()


@pytest.mark.parametrize("name", LATENT["architectures"])
def test_known_architectures(name):
    row = LATENT["architectures"][name]
    config = config_from_keys(row["config"])
    assert (parameters(config), active_parameters(config)) == (row["parameters"], row["active"])
    assert buffers(config) == row["buffers"]
    assert cache_elements(bound(config)[1], 1, 1) == (row["kv"], 0, 0)


@pytest.mark.parametrize(("keys", "words"), [
    (REAL["glm-5.2"], "1 layer that predicts further tokens (num_nextn_predict_layers)"),
    (REAL["minimax-m3"], "7 layers that predict further tokens (num_mtp_modules)"),
    (REAL["kimi-k2.5"], "the vision tower (vision_config)"),
])  # fmt: skip
def test_what_is_left_out_is_named(keys, words):
    assert words in config_from_keys(keys).left_out


V3 = DENSE | EXPERTS | {"model_type": "deepseek_v3"}
V32 = DENSE | EXPERTS | INDEX | {"model_type": "deepseek_v32"}
GLM = V32 | {"model_type": "glm_moe_dsa"}


@pytest.mark.parametrize(("keys", "message"), [
    (V3 | {"moe_layer_freq": 2}, "moe_layer_freq=2"),
    (V3 | {"num_key_value_heads": 2}, "num_key_value_heads=2 with num_attention_heads=4"),
    (V3 | {"qk_head_dim": 25}, "qk_head_dim=25"),
    (V3 | {"mlp_bias": True}, "mlp_bias=True"),
    (V3 | {"mlp_layer_types": ["dense", "sparse", "sparse"]}, "mlp_layer_types"),
    (V3 | {"index_topk": 4}, "index_topk=4: not understood"),
    (V32 | {"mlp_layer_types": ["sparse"] * 3}, "first_k_dense_replace=1 with mlp_layer_types"),
    (V32 | {"mlp_layer_types": ["dense"], "first_k_dense_replace": None}, "mlp_layer_types of 1 entries"),
    (V32 | {"q_lora_rank": None}, "q_lora_rank=null"),
    (V32 | {"layer_types": ["full_attention"] * 3}, "layer_types='full_attention'"),
    (V32 | {"index_topk_pattern": "FSF"}, "index_topk_pattern"),
    (GLM | {"indexer_types": ["shared", "full", "full"]}, "the first layer has no earlier one"),
    (GLM | {"index_topk_pattern": "FXF"}, "index_topk_pattern='X'"),
    (DENSE | EXPERTS | {"model_type": "glm4_moe_lite", "first_k_dense_replace": 2}, "first_k_dense_replace=2"),
    (REAL["kimi-k2-instruct"] | {"q_lora_rank": 1536, "kv_lora_rank": None}, "kv_lora_rank: missing"),
    (KIMI | {"n_routed_experts": 8}, "n_routed_experts=8"),
    (KIMI | {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
    (KIMI | {"linear_attn_config": LISTS | {"full_attn_layers": [2]}}, "must name each of the 5 layers once"),
    (KIMI | {"linear_attn_config": {"use_full_rank_gate": True}}, "use_full_rank_gate"),
    (V4 | {"compress_ratios": [0, 4, 8, 4, 0]}, "compress_ratios=8"),
    (V4 | {"compress_ratios": [0, 4]}, "compress_ratios of 2 entries"),
    (V4 | {"layer_types": V4_KINDS + V4_KINDS[:2]}, "layer_types with compress_ratios"),
    (V4 | {"n_shared_experts": 2}, "n_shared_experts=2"),
    (V4 | {"num_key_value_heads": 2}, "num_key_value_heads=2"),
    (V4 | {"attention_bias": True}, "attention_bias=True"),
    (V4 | {"o_groups": 3}, "o_groups=3"),
    (M3 | {"attention_output_gate": True}, "attention_output_gate=True"),
    (M3 | {"first_k_dense_replace": 2}, "first_k_dense_replace=2"),
    (M3 | {"sparse_attention_config": {"sparse_init_block": 1}}, "sparse_init_block=1"),
    (M3 | {"index_local_blocks": 3}, "index_local_blocks=3"),
    (json.loads((DATA / "configs" / "kimi-k3.json").read_text()), "attn_res_block_size=12"),
])  # fmt: skip
def test_refused_by_the_key(keys, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")) as caught:
        config_from_keys(keys)
    assert "\n" not in str(caught.value)
