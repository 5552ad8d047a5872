"""What a value depends on beside shapes: scales, offsets, routing and rotary stretches, as the Hugging Face classes.

Defaults are compared with those of the class itself; stretches with its own functions; scales with its modules.
"""

import math

import pytest

from archcalc.config import Attention
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.parts.latent import LatentAttention

SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 256,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 32}
ROUTED = EXPERTS | {"n_routed_experts": 8, "n_shared_experts": 1}
LATENT = SIZES | {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 12,
    "full_attention_interval": 2,
}  # fmt: skip
STATES = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2}
PAIR = {
    "vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
}  # fmt: skip
T5 = {"vocab_size": 128, "d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 2, "num_heads": 4}
KEYS = {
    "gpt2": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neo": {"vocab_size": 128, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
                "attention_types": [[["global", "local"], 1]]},
    "codegen": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    "gptj": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    "gpt_oss": GROUPED | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "mixtral": GROUPED | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "phi3": SIZES | {"num_key_value_heads": 2},
    "dots1": GROUPED | ROUTED | {"first_k_dense_replace": 1},
    "glm4_moe": GROUPED | ROUTED,
    "exaone_moe": GROUPED | EXPERTS,
    "olmoe": GROUPED | {"num_experts": 8, "num_experts_per_tok": 2},
    "flex_olmo": GROUPED | {"num_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": GROUPED | EXPERTS,
    "qwen2_moe": GROUPED | SHARED,
    "qwen3_next": GROUPED | SHARED | DELTA,
    "deepseek_v2": LATENT, "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT, "axk1": LATENT, "mistral4": LATENT,
    "mamba2": STATES | {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2},
    "nemotron_h": SIZES | {"hybrid_override_pattern": "M*E-", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
                           "moe_shared_expert_intermediate_size": 32, "num_key_value_heads": 2, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "t5": T5, "mt5": T5, "umt5": T5,
    "bart": PAIR, "pegasus": PAIR, "marian": PAIR, "mbart": PAIR,
}  # fmt: skip


def read(model_type: str, **extra):
    """The config of a small model of this type, with some keys more or others."""
    return config_from_keys(KEYS.get(model_type, GROUPED) | extra | {"model_type": model_type})


def block(model_type: str, layer: int = 1, **extra):
    return read(model_type, **extra).decoder.layers[layer]


def hugging_face(model_type: str, **extra):
    """The class's own config of the same keys."""
    transformers = pytest.importorskip("transformers")
    # A class changes the dictionaries that it is given.
    keys = {name: dict(value) if type(value) is dict else value for name, value in extra.items()}
    return transformers.CONFIG_MAPPING[model_type](**KEYS.get(model_type, GROUPED) | keys)


# Norms.


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3_text", "vaultgemma", "nemotron"])
def test_the_scale_of_these_norms_is_stored_less_one(model_type):
    found = read(model_type)
    one = found.decoder.layers[0]
    assert (one.norm.offset, found.decoder.final_norm.offset) == (1.0, 1.0)
    if one.self_attn.qk_norm:
        assert one.self_attn.qk_norm.offset == 1.0


def test_norms_of_qwen3_next():
    stack = read("qwen3_next").decoder
    linear, full = stack.layers[:2]
    assert (linear.norm.offset, full.norm.offset, stack.final_norm.offset) == (1.0, 1.0, 1.0)
    assert (linear.self_attn.norm.offset, full.self_attn.qk_norm.offset) == (0.0, 1.0)
    assert block("llama").norm.offset == block("qwen3").self_attn.qk_norm.offset == 0.0


# Scales of scores and logits.


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "vaultgemma"])
def test_query_pre_attn_scalar(model_type):
    assert block(model_type).self_attn.scale == hugging_face(model_type).query_pre_attn_scalar ** -0.5 == 1 / 16
    assert block(model_type, query_pre_attn_scalar=144).self_attn.scale == 1 / 12
    with pytest.raises(ConfigError, match=r"query_pre_attn_scalar=0.0: must be positive"):
        read(model_type, query_pre_attn_scalar=0)


@pytest.mark.parametrize("model_type", ["granite", "granite_swa"])
def test_factors_of_granite(model_type):
    assert (block(model_type).self_attn.scale, read(model_type).head.scale) == (1.0, 1.0)
    assert hugging_face(model_type).attention_multiplier == hugging_face(model_type).logits_scaling == 1.0
    found = read(model_type, attention_multiplier=0.015625, logits_scaling=8)
    assert (found.decoder.layers[0].self_attn.scale, found.head.scale) == (0.015625, 0.125)


@pytest.mark.parametrize("model_type", ["cohere", "cohere2"])
def test_logit_scale(model_type):
    assert read(model_type).head.scale == hugging_face(model_type).logit_scale == 0.0625
    assert read(model_type, logit_scale=0.25).head.scale == 0.25


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_t5_scales_no_scores(model_type):
    found = read(model_type)
    parts = [one.self_attn for stack in found.stacks.values() for one in stack.layers]
    parts += [one.cross_attn for one in found.decoder.layers]
    assert {one.scale for one in parts} == {1.0}
    assert parts[0].relative_max_distance == hugging_face(model_type).relative_attention_max_distance == 128
    shorter = read(model_type, relative_attention_max_distance=64)
    assert {one.self_attn.relative_max_distance for one in shorter.decoder.layers} == {64}


@pytest.mark.parametrize(("model_type", "extra", "scaled"), [
    ("t5", {}, True), ("t5", {"tie_word_embeddings": False}, False), ("umt5", {}, True), ("mt5", {}, False),
    ("t5", {"scale_decoder_outputs": False, "tie_word_embeddings": True}, False),
])  # fmt: skip
def test_what_a_tied_t5_head_reads_is_scaled(model_type, extra, scaled):
    assert read(model_type, **extra).head.scale == (1 / 8 if scaled else 1.0)
    if model_type != "mt5":
        assert hugging_face(model_type, **extra).scale_decoder_outputs == scaled


# The module that multiplies the scores, by model_type.
SCORES = {
    "llama": "layers.1.self_attn", "qwen3": "layers.1.self_attn", "gemma": "layers.1.self_attn",
    "gemma2": "layers.1.self_attn", "gemma3_text": "layers.1.self_attn", "granite": "layers.1.self_attn",
    "gpt_oss": "layers.1.self_attn", "deepseek_v3": "layers.1.self_attn", "qwen3_next": "layers.1.self_attn",
    "t5": "decoder.block.1.layer.0.SelfAttention", "bart": "decoder.layers.1.self_attn",
    "marian": "decoder.layers.1.self_attn",
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(("model_type", "extra"), [
    *((name, {}) for name in SCORES), ("gemma3_text", {"query_pre_attn_scalar": 168}),
    ("deepseek_v3", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("granite", {"attention_multiplier": 0.125}), ("bart", {"head_dim": None}), ("gpt_oss", {"head_dim": 32}),
])  # fmt: skip
def test_scale_is_that_of_the_module(model_type, extra):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    extra = extra if model_type != "marian" else extra | {"pad_token_id": 0}
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(hugging_face(model_type, **extra))
    mixer = block(model_type, **extra).self_attn
    latent = isinstance(mixer, LatentAttention)
    width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim if latent else mixer.head_dim
    scale = mixer.scale if mixer.scale is not None else width**-0.5
    assert model.get_submodule(SCORES[model_type]).scaling == pytest.approx(scale, rel=1e-12)


def test_gpt_neo_and_gpt2():
    assert block("gpt_neo").self_attn.scale == 1.0  # its class has no division by sqrt(head_dim)
    assert block("gpt2").self_attn.scale is None


# Experts.

ROUTING = {
    "mixtral": ("softmax", ()), "qwen2_moe": ("softmax", ("norm_topk_prob",)),
    "qwen3_moe": ("softmax", ("norm_topk_prob",)), "qwen3_next": ("softmax", ("norm_topk_prob",)),
    "olmoe": ("softmax", ("norm_topk_prob",)), "flex_olmo": ("softmax", ("norm_topk_prob",)),
    "gpt_oss": ("softmax", ()), "deepseek_v2": ("softmax", ("routed_scaling_factor",)),
    **dict.fromkeys(
        ("deepseek_v3", "dots1", "glm4_moe", "exaone_moe", "glm4_moe_lite", "axk1", "nemotron_h"),
        ("sigmoid", ("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group")),
    ),
    "mistral4": ("softmax", ("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group")),
}  # fmt: skip
OTHER = {"routed_scaling_factor": 1.25, "n_group": 2, "topk_group": 2}


@pytest.mark.parametrize(("model_type", "scoring", "names"), [(one, *rest) for one, rest in ROUTING.items()])
def test_routing(model_type, scoring, names):
    layer = 2 if model_type == "nemotron_h" else 1
    mlp, own = block(model_type, layer).mlp, hugging_face(model_type)
    assert mlp.scoring == scoring
    for name in names:
        assert getattr(mlp, name) == getattr(own, name), name
        other = OTHER.get(name, not getattr(own, name))
        assert getattr(block(model_type, layer, **{name: other}).mlp, name) == other
    fixed = {"norm_topk_prob": model_type != "deepseek_v2", "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
    assert {name: getattr(mlp, name) for name in fixed if name not in names} == {
        name: value for name, value in fixed.items() if name not in names
    }


def test_groups_of_deepseek_v2_need_a_method():
    groups = {"n_group": 4, "topk_group": 2}
    assert block("deepseek_v2", **groups).mlp.n_group == 1
    found = block("deepseek_v2", topk_method="group_limited_greedy", **groups).mlp
    assert (found.n_group, found.topk_group) == (4, 2)


def test_swiglu_limit():
    assert block("gpt_oss").mlp.expert.swiglu_limit == hugging_face("gpt_oss").swiglu_limit == 7.0
    assert block("gpt_oss", swiglu_limit=9).mlp.expert.swiglu_limit == 9.0
    assert block("mixtral").mlp.expert.swiglu_limit is None


# Rotary positions.


def stretched(model_type: str, own, layer_type=None):
    """(base, attention factor) by the Hugging Face function of its type."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = own.rope_parameters[layer_type] if layer_type else own.rope_parameters
    return given["rope_theta"], ROPE_INIT_FUNCTIONS[given["rope_type"]](own, "cpu", layer_type=layer_type)[1]


LONG = {
    "rope_type": "longrope",
    "long_factor": [2.0 + i for i in range(8)],
    "short_factor": [1.0 + i for i in range(8)],
}

BEFORE = {"original_max_position_embeddings": 64}


@pytest.mark.parametrize(("model_type", "extra"), [
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": YARN | {"attention_factor": 0.9, "beta_fast": 16, "beta_slow": 2, "truncate": False}}),
    ("qwen3", {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}),
    ("qwen3", {"rope_scaling": YARN | {"mscale": 0.7}}),
    ("qwen3", {"rope_parameters": YARN | {"rope_theta": 5e4}}),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
    ("llama", {"rope_scaling": YARN, "original_max_position_embeddings": 64}),
    ("deepseek_v3", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("gpt_oss", {}),
    ("mistral4", {}),
    ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 128}),
    ("phi3", {"rope_scaling": LONG | {"rope_type": "su"} | BEFORE} | BEFORE),
    ("phi3", {"rope_scaling": LONG, "max_position_embeddings": 8192}),
    ("llama", {"rope_scaling": LONG | {"factor": 4.0, "original_max_position_embeddings": 64}}),
    ("llama", {"rope_scaling": LONG | {"attention_factor": 1.5, "original_max_position_embeddings": 64}}),
])  # fmt: skip
def test_stretches_are_those_of_the_class(model_type, extra):
    own = hugging_face(model_type, **extra)
    base, factor = stretched(model_type, own)
    found = block(model_type, **extra).self_attn.rotary
    scaling, given = found.rope_scaling, own.rope_parameters
    assert (found.rope_theta, scaling.rope_type) == (base, given["rope_type"])
    assert scaling.attention_factor == pytest.approx(factor, rel=1e-12)
    assert scaling.original_max_position_embeddings == given["original_max_position_embeddings"]
    if scaling.rope_type == "yarn":
        usual = {"factor": None, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
        assert {name: getattr(scaling, name) for name in usual} == {n: given.get(n, v) for n, v in usual.items()}
    else:
        assert (list(scaling.long_factor), list(scaling.short_factor)) == (LONG["long_factor"], LONG["short_factor"])


def test_gpt_oss_and_mistral4_without_parameters():
    given = block("gpt_oss").self_attn.rotary
    assert (given.rope_theta, given.rope_scaling.factor, given.rope_scaling.truncate) == (150000.0, 32.0, False)
    plain = block("gpt_oss", rope_parameters={"rope_type": "default", "rope_theta": 1e4}).self_attn.rotary
    assert (plain.rope_theta, plain.rope_scaling) == (1e4, None)
    assert block("mistral4").self_attn.scale == pytest.approx((0.1 * math.log(128) + 1) ** 2 * 24**-0.5)


def test_dynamic_begins_after_the_longest_context():
    scaling = block("llama", rope_scaling={"type": "dynamic", "factor": 2.0}).self_attn.rotary.rope_scaling
    assert (scaling.factor, scaling.original_max_position_embeddings) == (2.0, 256)


FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR = {"rope_type": "linear", "factor": 8.0}
WINDOWS = {"layer_types": [SLIDING, FULL, SLIDING, FULL], "sliding_window": 8}


@pytest.mark.parametrize(("model_type", "extra"), [
    ("gemma3_text", {}),
    ("gemma3_text", {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR}),
    ("gemma3_text", {"rope_parameters": {FULL: LINEAR | {"rope_theta": 3e6}, SLIDING: {"rope_type": "default"}}}),
    ("gemma3_text", {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 2e6}}}),
    ("olmo3", {}),
    ("olmo3", {"rope_scaling": YARN, "rope_theta": 5e5}),
    ("olmo3", {"rope_parameters": {FULL: YARN | {"rope_theta": 5e5}, SLIDING: {"rope_theta": 1e4}}}),
])  # fmt: skip
def test_rotary_positions_by_type_of_layer(model_type, extra):
    own = hugging_face(model_type, **WINDOWS, **extra)
    layers = read(model_type, **WINDOWS, **extra).decoder.layers
    for kind, one in zip(own.layer_types, layers, strict=True):
        found, given = one.self_attn.rotary, own.rope_parameters[kind]
        assert found.rope_theta == given["rope_theta"]
        scaling = found.rope_scaling
        assert (scaling.rope_type if scaling else "default") == given["rope_type"]
        assert (scaling.factor if scaling else None) == given.get("factor")
        assert bool(one.self_attn.sliding_window) == (kind == SLIDING)


@pytest.mark.parametrize("extra", [
    {}, {"global_rope_theta": 8e4, "local_rope_theta": 5e3},
    {"rope_parameters": {FULL: {"rope_theta": 1e5, "rope_type": "default"}, SLIDING: LINEAR | {"rope_theta": 7.0}}},
])  # fmt: skip
def test_rotary_positions_of_modernbert(extra):
    own = hugging_face("modernbert", **extra)
    for kind, one in zip(own.layer_types, read("modernbert", **extra).encoder.layers, strict=True):
        given, found = own.rope_parameters[kind], one.self_attn.rotary
        assert (found.rope_theta, bool(found.rope_scaling)) == (given["rope_theta"], "factor" in given)


@pytest.mark.parametrize(("extra", "message"), [
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
      "original_max_position_embeddings": 32}, "original_max_position_embeddings=32 with rope_scaling"),
    ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "attention_factor=-1.0: must be a positive number"),
    ({"rope_scaling": YARN | {"mscale": -5.0}}, "mscale=-5.0: must lie between 0 and 1000"),
    ({"rope_scaling": YARN | {"truncate": 1}}, "truncate=1: must be true or false"),
    ({"rope_scaling": LONG | {"factor": 2.0, "long_factor": [1.0]}}, "long_factor with short_factor"),
    ({"rope_scaling": LONG | {"factor": 2.0, "short_factor": ["1"]}}, "short_factor=\\['1'\\]: must be a list of num"),
    ({"rope_theta": 1e4, "rope_parameters": {FULL: {"rope_theta": 2e4}}}, "they disagree"),
])  # fmt: skip
def test_stretches_that_are_refused(extra, message):
    with pytest.raises(ConfigError, match=message):
        read("llama", **extra)


def test_a_context_of_one_token_has_no_logarithm():
    scaling = LONG | {"factor": 2.0, "original_max_position_embeddings": 1}
    assert block("llama", rope_scaling=scaling).self_attn.rotary.rope_scaling.attention_factor == 1.0


@pytest.mark.parametrize("model_type", ["gptj", "codegen", "cohere", "cohere2", "glm", "glm4", "ernie4_5"])
def test_families_that_turn_neighbours(model_type):
    assert block(model_type, 0).self_attn.rotary.interleaved
    assert not block("llama").self_attn.rotary.interleaved


def test_latent_attention_turns_the_whole_rotary_part():
    found = block("mistral4", partial_rotary_factor=1 / 3).self_attn
    assert (found.rotary.partial_rotary_factor, found.rotary.interleaved) == (1.0, False)


# Embeddings and state spaces.


@pytest.mark.parametrize(("model_type", "halves"), [("marian", True), ("pegasus", True), ("bart", False)])
def test_order_of_sinusoids(model_type, halves):
    assert read(model_type).embedding.sinusoid_halves == halves


def test_sinusoids_of_marian_are_those_of_the_class():
    module = pytest.importorskip("transformers.models.marian.modeling_marian").MarianSinusoidalPositionalEmbedding
    table = module(8, 6).create_weight()
    angles = [[p / 10000 ** (2 * i / 6) for i in range(3)] for p in range(8)]
    halves = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    assert table.tolist() == [pytest.approx(row, abs=1e-6) for row in halves]


@pytest.mark.parametrize(("given", "limit"), [
    (None, (0.0, math.inf)), ([0.0, math.inf], (0.0, math.inf)), ([0.001, 0.1], (0.001, 0.1)),
    ([0, {"__float__": "Infinity"}], (0.0, math.inf)),
])  # fmt: skip
def test_time_step_limit(given, limit):
    extra = {} if given is None else {"time_step_limit": given}
    assert block("mamba2", **extra).self_attn.time_step_limit == limit
    if given is None:
        assert tuple(hugging_face("mamba2").time_step_limit) == limit


@pytest.mark.parametrize("given", [[0.1], [0.2, 0.1], [-1, 1], "0", [0, "1"], [False, True], {"min": 0}])
def test_time_step_limits_that_are_refused(given):
    with pytest.raises(ConfigError, match=r"time_step_limit=.*must be two numbers"):
        read("mamba2", time_step_limit=given)


def test_state_spaces_of_nemotron_h():
    found = block("nemotron_h", 0).self_attn
    assert (found.time_step_limit, found.norm_per_group) == ((hugging_face("nemotron_h").time_step_min, math.inf), True)
    assert block("nemotron_h", 0, time_step_min=0.5).self_attn.time_step_limit == (0.5, math.inf)
    assert block("mamba2", 0).self_attn.norm_per_group


def test_a_plain_model_keeps_the_plain_values():
    found = block("llama").self_attn
    assert isinstance(found, Attention)
    assert (found.scale, read("llama").head.scale, block("llama").norm.offset) == (None, 1.0, 0.0)


def test_routing_of_deepseek_v2_that_its_class_never_does_is_refused():
    assert block("deepseek_v2", norm_topk_prob=False).mlp.norm_topk_prob is False
    with pytest.raises(ConfigError, match="norm_topk_prob=True"):
        block("deepseek_v2", norm_topk_prob=True)


@pytest.mark.parametrize(("model_type", "offset"), [("bert", 0), ("roberta", 2), ("camembert", 2)])
def test_positions_of_roberta_begin_behind_its_padding(model_type, offset):
    found = config_from_keys({"model_type": model_type, "max_position_embeddings": 514, "pad_token_id": 1})
    assert (found.embedding.position_offset, found.max_position_embeddings) == (offset, 514 - offset)
