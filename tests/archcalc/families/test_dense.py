"""Dense decoder-only families against transformers: parameters and stored buffers of real sizes and of toys that flip
each key that changes a shape; FLOPs and cache of the toys, counted in an eager forward pass.
"""

import json
from copy import deepcopy
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.cost import Pass, bound, buffers, cache_elements, parameters, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

RELEASES = json.loads((Path(__file__).parents[1] / "data" / "dense_releases.json").read_text())["configs"]
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
DEEP = {"sliding_window": 8, "num_hidden_layers": 12}  # shows the period of the default
SHORT_PATTERN = {"sliding_window_pattern": 3, "sliding_window": 8}
NEW_SPELLING = {"dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
BY_TYPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
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
    *toys("gemma2", DEEP, UNTIED, BIASED, WIDE, {"sliding_window": 8}, {"sliding_window": 8, "layer_types": MIXED},
          {"attn_logit_softcapping": None, "final_logit_softcapping": None},
          {"hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh"}),
    *toys("gemma3_text", DEEP, BY_TYPE, UNTIED, BIASED, WIDE, SHORT_PATTERN,
          {"sliding_window": 8, "layer_types": MIXED},
          {"rope_local_base_freq": 1e4, "rope_theta": 1e6, "rope_scaling": LINEAR}, {"attn_logit_softcapping": 30.0}),
    *toys("vaultgemma", DEEP, UNTIED, BIASED),
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
    *toys("olmo3", DEEP, BY_TYPE, TIED, BIASED, {"sliding_window": 8, "layer_types": MIXED}),
    *toys("cohere", UNTIED, BIASED, {"use_qk_norm": True}, MULTI_HEAD),
    *toys("cohere2", DEEP, UNTIED, BIASED, SHORT_PATTERN, {"sliding_window": 8, "layer_types": MIXED}, MULTI_HEAD,
          WIDE),
    *toys("stablelm", TIED, {"use_qkv_bias": True}, {"qk_layernorm": True}, {"use_parallel_residual": True}),
    *toys("starcoder2", UNTIED, {"use_bias": False}, {"sliding_window": 8}),
    *toys("gpt_bigcode", UNTIED, {"multi_query": False}, {"n_inner": None}, names=GPT2, without=KV),
    *toys("granite", TIED, BIASED, {"mlp_bias": True}, WIDE, MULTI_HEAD, {"residual_multiplier": 0.2}),
    *toys("smollm3", UNTIED, BIASED, {"mlp_bias": True}, DEEP | {"use_sliding_window": True},
          {"no_rope_layers": [1, 0, 1, 1]}, {"layer_types": MIXED, "use_sliding_window": True, "sliding_window": 8},
          pad_token_id=0),
    *toys("nemotron", TIED, BIASED, {"mlp_bias": True}, WIDE, {"num_key_value_heads": 4}),
    *toys("glm", TIED, UNBIASED, WIDE, pad_token_id=0),
    *toys("glm4", TIED, UNBIASED, WIDE, pad_token_id=0),
    *toys("exaone", TIED, BIASED, {"mlp_bias": True}, WIDE),
    *toys("exaone4", DEEP, TIED, WIDE, SHORT_PATTERN, {"sliding_window": 8, "layer_types": MIXED},
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
    *toys("cwm", TIED, WIDE, DEEP, {"mlp_bias": True}),
    *toys("granite_swa", UNTIED, BIASED, {"mlp_bias": True}, DEEP, {"layer_rope_theta": [0, 1e4, 1e4, 1e4]}),
    *toys("jais2", TIED, UNBIASED, {"mlp_bias": False}, WIDE, MULTI_HEAD),
    *toys("hyperclovax", TIED, BIASED, {"use_post_norm": False}, {"mlp_bias": True}),
    *toys("iquestcoder", TIED, BIASED, {"mlp_bias": True}),
    *toys("openai-gpt", UNTIED, names=GPT2, without=MLP),
    *toys("ctrl", UNTIED, names=GPT2 | {"intermediate_size": "dff"}, without=KV),
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


def check(keys: dict, oracle_keys: dict | None = None) -> None:
    config, oracle = config_from_keys(keys), counted(built(oracle_keys or keys))
    assert (parameters(config), buffers(config)) == (oracle["language_model"], oracle["buffers"])


@pytest.mark.parametrize("keys", TOYS, ids=ident)
def test_parameters_of_toys(keys):
    check(keys, whole(keys))


@pytest.mark.parametrize("name", RELEASES)
def test_parameters_of_releases(name):
    check(RELEASES[name])


def test_mimo_is_qwen2_and_names_what_is_left_out():
    keys = next(k for k in TOYS if k["model_type"] == "qwen2") | {"num_nextn_predict_layers": 1}
    check(keys | {"model_type": "mimo"}, keys)
    assert "num_nextn_predict_layers" in config_from_keys(keys | {"model_type": "mimo"}).left_out[0]


FIRST = {keys["model_type"]: keys for keys in reversed(TOYS)}
WINDOWS = [k for k in TOYS if {"sliding_window", "window_size"} & k.keys() and k is not FIRST[k["model_type"]]]
SHAPED = [k for k in TOYS if k["model_type"] in ("falcon", "opt") and k is not FIRST[k["model_type"]]]
# transformers looks for a window in a ministral that has none, and has no cache for the first GPT
RUN = [k for k in [*FIRST.values(), *WINDOWS, *SHAPED] if not k["model_type"].endswith(("vl_text", "openai-gpt"))]
RUN = [k for k in RUN if k["model_type"] != "ministral" or k.get("sliding_window", 1)]
B, T = 2, 16


def measured(keys: dict) -> tuple[int, int, int]:
    """(FLOPs of a first pass of B x T tokens, elements of its cache, FLOPs of the next token) in eager transformers."""
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    rest = deepcopy(keys)
    config = transformers.AutoConfig.for_model(rest.pop("model_type"), **rest)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    tokens, first, later = torch.full((B, T), 5), FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.no_grad():
        with first:
            kept = model(tokens, use_cache=True).past_key_values
        held = sum(layer.keys.numel() + layer.values.numel() for layer in kept.layers)
        with later:
            model(tokens[:, :1], past_key_values=kept, use_cache=True)
    return first.get_total_flops(), held, later.get_total_flops()


def expected(keys: dict) -> tuple[int, int, int]:
    """The same of the op list.

    Eager attention multiplies every pair of a first pass. Its cache holds W - 1 tokens of a window, so that the next
    token sees W. GPT-Neo there keeps every token, and Falcon's newer block a copy of its keys for each query head.
    """
    config = config_from_keys(keys)
    step = bound(config)[1]
    everything = keys["model_type"] == "gpt_neo"
    dims = {"B": B, "T": 1, "S": T + 1, "R": 1}
    first = total(Pass("", dims | {"T": T, "S": T, "R": T}, step), dense=True).flops
    held = cache_elements(step, B, T, static=everything).cache
    for block in config.decoder.layers:
        attention = block.self_attn
        if (attention.sliding_window or T + 1) <= T and not everything:
            held -= 2 * B * attention.num_key_value_heads * attention.head_dim
    copies = keys.get("new_decoder_architecture", False)
    attention = config.decoder.layers[0].self_attn
    held *= attention.num_attention_heads // attention.num_key_value_heads if copies else 1
    return first, held, total(Pass("", dims, step), dense=everything).flops


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("keys", RUN, ids=ident)
def test_flops_and_cache_of_toys(keys):
    assert expected(keys) == measured(keys)


@pytest.mark.parametrize(
    ("model_type", "change", "named"),
    [
        ("mpt", {"expansion_ratio": 8}, "expansion_ratio"),
        ("mpt", {"no_bias": False}, "no_bias"),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_config.attn_type"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
        ("falcon", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        ("falcon", {"parallel_attn": False, "new_decoder_architecture": True}, "parallel_attn"),
        ("falcon", {"ff_factor": 2}, "ff_factor"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("bloom", {"intermediate_size": 100}, "intermediate_size"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}, "attention_types"),
        ("gpt_neo", {"attention_types": [[["nearby"], 4]]}, "attention_types"),
        ("qwen2", {"layer_types": MIXED}, "layer_types"),
        ("gemma3_text", {"_sliding_window_pattern": 3}, "_sliding_window_pattern"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block"),
        ("internlm3", {"qkv_bias": True}, "qkv_bias"),
        ("helium", {"head_dim": 24}, "hidden_size"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("phi3", {"lm_head_bias": True}, "lm_head_bias"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla"),
        ("gpt_bigcode", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ],
)
def test_what_would_change_a_shape_unseen_is_refused_by_name(model_type, change, named):
    with pytest.raises(ConfigError, match=f"^{named}"):
        config_from_keys(FIRST[model_type] | change)


def test_a_llama_whose_switch_is_off_has_no_window():
    plain = toys("llama")[0]
    on = config_from_keys(plain | {"sliding_window": 8})
    off = config_from_keys(plain | {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2})
    assert on.decoder != off.decoder == config_from_keys(plain).decoder


def test_adapters_are_named_and_left_out():
    plain = toys("llama")[0]
    adapted = config_from_keys(plain | {"adapters": {"adapters": {"a": "pfeiffer"}, "config_map": {}}})
    assert adapted.left_out[0].startswith("adapters") and adapted.decoder == config_from_keys(plain).decoder


def test_two_names_of_the_vocabulary_agree():
    with pytest.raises(ConfigError, match=r"^vocab_size=160 with n_vocab=161"):
        config_from_keys(toys("gpt2", names=GPT2, without=("num_key_value_heads",), n_vocab=161)[0])


def test_absent_sizes_are_those_of_a_release_and_are_named():
    assert config_from_keys({"model_type": "gptj"}).assumed["hidden_size"] == 4096
    with pytest.raises(ConfigError, match="_size: missing"):
        config_from_keys({"model_type": "olmo2"})
