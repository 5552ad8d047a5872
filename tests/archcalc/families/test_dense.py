"""Dense decoder-only families against transformers: parameters and stored buffers of real sizes and of toys that flip
each key that changes a shape; FLOPs and cache of the toys, counted in an eager forward pass.
"""

import json

import pytest

from archcalc.against import built, counted
from archcalc.cost import Pass, bound, buffers, cache_elements, parameters, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TOY = {
    "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0}
MIXED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


def toys(model_type: str, *variants: dict, names: dict | None = None, without: tuple = (), **base) -> list[dict]:
    """The toy as it is, and with each variant; `names` are the family's own names of TOY's keys."""
    names = names or {}
    toy = {names.get(k, k): v for k, v in TOY.items() if k not in without} | base | {"model_type": model_type}
    return [{k: v for k, v in (toy | variant).items() if v is not ...} for variant in ({}, *variants)]


TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIASED, UNBIASED = {"attention_bias": True}, {"attention_bias": False}
WIDE, NULL_HEAD, MULTI_HEAD = {"head_dim": 24}, {"head_dim": None}, {"num_key_value_heads": None}
SHORT_PATTERN = {"sliding_window_pattern": 3, "sliding_window": 8}
NEW_SPELLING = {"dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
OLD_SPELLING = {"torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": LINEAR}
GPT2 = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
}  # fmt: skip
NEO = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
MPT = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
XGLM = {
    "hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
}  # fmt: skip
KV, MLP = ("num_key_value_heads",), ("num_key_value_heads", "intermediate_size")
UPPER = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
FALCON40 = {"new_decoder_architecture": True, "num_kv_heads": 2}

TOYS = [
    *toys("qwen2", TIED, WIDE, MULTI_HEAD, UPPER, {"use_sliding_window": False, "sliding_window": 8}, OLD_SPELLING,
          {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED}, NEW_SPELLING,
          UPPER | {"max_window_layers": 0}),
    *toys("qwen2_vl_text", TIED, UPPER, {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    *toys("qwen2_5_vl_text", TIED, UPPER),
    *toys("qwen3", TIED, BIASED, WIDE, UPPER, {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED}),
    *toys("qwen3_vl_text", BIASED, WIDE),
    *toys("gemma", UNTIED, BIASED, WIDE, {"num_key_value_heads": 1}, {"hidden_act": "gelu"}),
    *toys("gemma2", UNTIED, BIASED, WIDE, {"sliding_window": 8}, {"sliding_window": 8, "layer_types": MIXED},
          {"attn_logit_softcapping": None, "final_logit_softcapping": None},
          {"hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh"}),
    *toys("gemma3_text", UNTIED, BIASED, WIDE, SHORT_PATTERN, {"sliding_window": 8, "layer_types": MIXED},
          {"rope_local_base_freq": 1e4, "rope_theta": 1e6, "rope_scaling": LINEAR}, {"attn_logit_softcapping": 30.0}),
    *toys("vaultgemma", UNTIED, BIASED, {"sliding_window": 8}),
    *toys("phi", TIED, {"qk_layernorm": True}, {"partial_rotary_factor": 0.25}, MULTI_HEAD),
    *toys("phi3", TIED, WIDE, {"sliding_window": 8}, MULTI_HEAD, {"partial_rotary_factor": 0.75}, pad_token_id=0),
    *toys("falcon", {"multi_query": False}, {"parallel_attn": False}, {"bias": True}, FALCON40, {"ffn_hidden_size": 80},
          FALCON40 | {"num_ln_in_parallel_attn": 1}, FALCON40 | {"num_kv_heads": None}, FALCON40 | UNTIED,
          {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}, without=MLP),
    *toys("gpt_neox", TIED, UNBIASED, {"use_parallel_residual": False}, {"rotary_pct": 1.0, "rotary_emb_base": 5e5},
          without=KV),
    *toys("gptj", TIED, {"n_inner": None}, {"rotary_dim": 8}, names=GPT2, without=KV, rotary_dim=16),
    *toys("codegen", TIED, {"n_inner": None}, names=GPT2, without=KV, rotary_dim=16),
    *toys("gpt_neo", UNTIED, {"intermediate_size": None}, {"attention_types": [[["global", "local", "local"], 1],
          [["global"], 1]]}, names=NEO, without=KV, attention_types=[[["global", "local"], 2]], window_size=8),
    *toys("opt", UNTIED, {"word_embed_proj_dim": 32}, {"do_layer_norm_before": False}, {"enable_bias": False},
          {"layer_norm_elementwise_affine": False}, {"_remove_final_layer_norm": True},
          {"word_embed_proj_dim": 32, "do_layer_norm_before": False, "tie_word_embeddings": True},
          without=KV, names={"intermediate_size": "ffn_dim"}),
    *toys("bloom", UNTIED, {"hidden_size": ..., "n_embed": 32}, without=MLP),
    *toys("mpt", UNTIED, {"attn_config": {"alibi": True, "clip_qkv": 8.0}}, names=MPT, without=MLP),
    *toys("olmo", TIED, BIASED, WIDE, MULTI_HEAD, {"clip_qkv": 8.0}),
    *toys("olmo2", TIED, BIASED, WIDE, MULTI_HEAD),
    *toys("olmo3", TIED, BIASED, {"sliding_window": 8}, {"sliding_window": 8, "layer_types": MIXED}),
    *toys("cohere", UNTIED, BIASED, {"use_qk_norm": True}, MULTI_HEAD),
    *toys("cohere2", UNTIED, BIASED, SHORT_PATTERN, {"sliding_window": 8, "layer_types": MIXED}, MULTI_HEAD, WIDE),
    *toys("stablelm", TIED, {"use_qkv_bias": True}, {"qk_layernorm": True}, {"use_parallel_residual": True}),
    *toys("starcoder2", UNTIED, {"use_bias": False}, {"sliding_window": 8}),
    *toys("gpt_bigcode", UNTIED, {"multi_query": False}, {"n_inner": None}, names=GPT2, without=KV),
    *toys("granite", TIED, BIASED, {"mlp_bias": True}, WIDE, MULTI_HEAD, {"residual_multiplier": 0.2}),
    *toys("smollm3", UNTIED, BIASED, {"mlp_bias": True}, {"use_sliding_window": True, "sliding_window": 8},
          {"no_rope_layers": [1, 0, 1, 1]}, {"layer_types": MIXED, "use_sliding_window": True, "sliding_window": 8},
          pad_token_id=0),
    *toys("nemotron", TIED, BIASED, {"mlp_bias": True}, WIDE, {"num_key_value_heads": 4}),
    *toys("glm", TIED, UNBIASED, WIDE, pad_token_id=0),
    *toys("glm4", TIED, UNBIASED, WIDE, pad_token_id=0),
    *toys("exaone", TIED, BIASED, {"mlp_bias": True}, WIDE),
    *toys("exaone4", TIED, WIDE, SHORT_PATTERN, {"sliding_window": 8, "layer_types": MIXED},
          {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    *toys("seed_oss", TIED, UNBIASED, {"attention_out_bias": True}, {"mlp_bias": True}, NULL_HEAD),
    *toys("arcee", TIED, BIASED, {"mlp_bias": True}, WIDE, MULTI_HEAD),
    *toys("apertus", TIED, BIASED, WIDE, MULTI_HEAD),
    *toys("hunyuan_v1_dense", TIED, BIASED, WIDE, MULTI_HEAD, head_dim=16),
    *toys("ernie4_5", UNTIED, {"use_bias": True}, NULL_HEAD, MULTI_HEAD),
    *toys("ministral", TIED, WIDE, {"sliding_window": None}, {"sliding_window": 8, "layer_types": MIXED},
          head_dim=16),
    *toys("ministral3", TIED, WIDE, {"sliding_window": 8}),
    *toys("internlm3", TIED, {"qkv_bias": True, "bias": True}, NULL_HEAD),
    *toys("helium", TIED, BIASED, {"mlp_bias": True}, head_dim=16),
    *toys("xglm", UNTIED, {"scale_embedding": False}, names=XGLM, without=KV),
    *toys("biogpt", UNTIED, {"scale_embedding": False}, without=KV),
    *toys("persimmon", TIED, {"qk_layernorm": False}, without=KV),
    *toys("nanochat", TIED, BIASED, MULTI_HEAD, {"final_logit_softcapping": None}),
    *toys("bitnet", TIED, BIASED, MULTI_HEAD),
]  # fmt: skip


def ident(keys: dict) -> str:
    base = {**TOY, "model_type": None}
    return keys["model_type"] + "".join(f" {k}={json.dumps(v)}"[:40] for k, v in keys.items() if base.get(k, ...) != v)


def whole(keys: dict) -> dict:
    """A text model of a composite inside that composite, with a vision tower of one layer."""
    kind = keys["model_type"]
    if not kind.endswith("vl_text"):
        return keys
    vision = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "deepstack_visual_indexes": [0]}
    tied = {"tie_word_embeddings": keys.get("tie_word_embeddings", False)}
    return {"model_type": kind.removesuffix("_text"), "text_config": keys, "vision_config": vision} | tied


@pytest.mark.parametrize("keys", TOYS, ids=ident)
def test_parameters_of_toys(keys):
    config, oracle = config_from_keys(keys), counted(built(whole(keys)))
    assert (parameters(config), buffers(config)) == (oracle["language_model"], oracle["buffers"])
