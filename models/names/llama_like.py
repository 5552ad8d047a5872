"""Decoders whose checkpoints are called as Llama's, or nearly."""

from __future__ import annotations

from models.names.rules import EITHER, NOTHING, Table, changed

LLAMA: Table = {
    "embed_tokens.weight": "embed_tokens.weight",
    "norm.weight": "norm.weight",
    "lm_head.{p}": "lm_head.{p}",
    "rotary_emb.inv_freq": NOTHING,
    "layers.{i}.self_attn.rotary_emb.inv_freq": NOTHING,
    "layers.{i}.input_layernorm.weight": "layers.{i}.self_attn_norm.weight",
    "layers.{i}.self_attn.{qkvo}_proj.{p}": "layers.{i}.self_attn.{qkvo}_proj.{p}",
    "layers.{i}.self_attn.q_norm.weight": "layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.self_attn.k_norm.weight": "layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.mlp.{ffn}_proj.{p}": "layers.{i}.mlp.{ffn}_proj.{p}",
}
GEMMA2 = changed(
    LLAMA,
    {
        "layers.{i}.post_attention_layernorm.weight": "layers.{i}.self_attn_post_norm.weight",
        "layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight",
        "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_post_norm.weight",
    },
)
OLMO2 = changed(
    LLAMA,
    {
        "layers.{i}.post_attention_layernorm.weight": "layers.{i}.self_attn_post_norm.weight",
        "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_post_norm.weight",
    },
)
PHI3 = changed(
    LLAMA,
    {
        "layers.{i}.self_attn.qkv_proj.weight": ("layers.{i}.self_attn.(q|k|v)_proj.weight", "qkv"),
        "layers.{i}.mlp.gate_up_proj.weight": ("layers.{i}.mlp.(gate|up)_proj.weight", "halves"),
    },
)
NEIGHBOURS: Table = {
    "layers.{i}.self_attn.q_proj.{p}": ("layers.{i}.self_attn.q_proj.{p}", "rotary_neighbours"),
    "layers.{i}.self_attn.k_proj.{p}": ("layers.{i}.self_attn.k_proj.{p}", "rotary_neighbours"),
}
COHERE = changed(LLAMA, NEIGHBOURS)
VAULTGEMMA = changed(LLAMA, {"layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight"})
GLM = changed(
    LLAMA,
    NEIGHBOURS,
    {"layers.{i}.mlp.gate_up_proj.weight": ("layers.{i}.mlp.(gate|up)_proj.weight", "halves")},
)
GLM4 = changed(
    GLM,
    {
        "layers.{i}.post_self_attn_layernorm.weight": "layers.{i}.self_attn_post_norm.weight",
        "layers.{i}.post_mlp_layernorm.weight": "layers.{i}.mlp_post_norm.weight",
    },
)
STABLELM = changed(
    LLAMA,
    {
        "norm.{p}": "norm.{p}",
        "layers.{i}.input_layernorm.{p}": "layers.{i}.self_attn_norm.{p}",
        "layers.{i}.post_attention_layernorm.{p}": "layers.{i}.mlp_norm.{p}",
    },
)
STARCODER2 = changed(
    STABLELM,
    {
        "layers.{i}.mlp.c_fc.{p}": "layers.{i}.mlp.up_proj.{p}",
        "layers.{i}.mlp.c_proj.{p}": "layers.{i}.mlp.down_proj.{p}",
    },
)
NEMOTRON = changed(
    STABLELM,
    {
        "norm.weight": ("norm.weight", "plus_one"),
        "layers.{i}.input_layernorm.weight": ("layers.{i}.self_attn_norm.weight", "plus_one"),
        "layers.{i}.post_attention_layernorm.weight": ("layers.{i}.mlp_norm.weight", "plus_one"),
    },
)
PERSIMMON = changed(
    STABLELM,
    {
        "final_layernorm.{p}": "norm.{p}",
        "layers.{i}.self_attn.query_key_value.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "qkv_groups"),
        "layers.{i}.self_attn.q_layernorm.{p}": "layers.{i}.self_attn.q_norm.{p}",
        "layers.{i}.self_attn.k_layernorm.{p}": "layers.{i}.self_attn.k_norm.{p}",
        "layers.{i}.self_attn.dense.{p}": "layers.{i}.self_attn.o_proj.{p}",
        "layers.{i}.mlp.dense_h_to_4h.{p}": "layers.{i}.mlp.up_proj.{p}",
        "layers.{i}.mlp.dense_4h_to_h.{p}": "layers.{i}.mlp.down_proj.{p}",
    },
)
PHI = changed(
    STABLELM,
    {
        "final_layernorm.{p}": "norm.{p}",
        "layers.{i}.self_attn.q_layernorm.{p}": "layers.{i}.self_attn.q_norm.{p}",
        "layers.{i}.self_attn.k_layernorm.{p}": "layers.{i}.self_attn.k_norm.{p}",
        "layers.{i}.self_attn.dense.{p}": "layers.{i}.self_attn.o_proj.{p}",
        "layers.{i}.mlp.fc1.{p}": "layers.{i}.mlp.up_proj.{p}",
        "layers.{i}.mlp.fc2.{p}": "layers.{i}.mlp.down_proj.{p}",
    },
)

# Published checkpoints have a tensor for each expert, transformers 5 one for all.
EXPERTS: Table = {
    "layers.{i}.mlp.gate.weight": "layers.{i}.mlp.router.weight",
    "layers.{i}.mlp.gate.e_score_correction_bias": "layers.{i}.mlp.correction_bias",
    "layers.{i}.mlp.experts.{e}.{ffn}_proj.weight": "layers.{i}.mlp.experts.{e}.{ffn}_proj.weight",
    "layers.{i}.mlp.experts.gate_up_proj": ("layers.{i}.mlp.experts.*.(gate|up)_proj.weight", "expert_halves"),
    "layers.{i}.mlp.experts.down_proj": ("layers.{i}.mlp.experts.*.down_proj.weight", "experts"),
    "layers.{i}.mlp.shared_expert.{ffn}_proj.weight": "layers.{i}.mlp.shared_expert.{ffn}_proj.weight",
    "layers.{i}.mlp.shared_experts.{ffn}_proj.weight": "layers.{i}.mlp.shared_expert.{ffn}_proj.weight",
    "layers.{i}.mlp.shared_expert_gate.weight": "layers.{i}.mlp.shared_expert_gate.weight",
}
LLAMA_MOE = changed(LLAMA, EXPERTS)
MIXTRAL = changed(
    LLAMA_MOE,
    {
        "layers.{i}.block_sparse_moe.gate.weight": "layers.{i}.mlp.router.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w1.weight": "layers.{i}.mlp.experts.{e}.gate_proj.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w2.weight": "layers.{i}.mlp.experts.{e}.down_proj.weight",
        "layers.{i}.block_sparse_moe.experts.{e}.w3.weight": "layers.{i}.mlp.experts.{e}.up_proj.weight",
    },
)
MINIMAX_M2 = changed(
    MIXTRAL,
    {
        "layers.{i}.mlp.e_score_correction_bias": "layers.{i}.mlp.correction_bias",
        "layers.{i}.block_sparse_moe.e_score_correction_bias": "layers.{i}.mlp.correction_bias",
    },
)
FLEX_OLMO = changed(OLMO2, EXPERTS)
GPT_OSS = changed(
    LLAMA,
    {
        "layers.{i}.self_attn.sinks": "layers.{i}.self_attn.sinks",
        "layers.{i}.mlp.router.{p}": "layers.{i}.mlp.router.{p}",
        "layers.{i}.mlp.experts.gate_up_proj": ("layers.{i}.mlp.experts.*.(gate|up)_proj.weight", "expert_turns"),
        "layers.{i}.mlp.experts.gate_up_proj_bias": ("layers.{i}.mlp.experts.*.(gate|up)_proj.bias", "expert_turns"),
        "layers.{i}.mlp.experts.down_proj": ("layers.{i}.mlp.experts.*.down_proj.weight", "expert_columns"),
        "layers.{i}.mlp.experts.down_proj_bias": ("layers.{i}.mlp.experts.*.down_proj.bias", "experts"),
    },
)  # fmt: skip
QUERIES = "layers.{i}.self_attn.q_b_proj.(nope|rope).weight"
DEEPSEEK_V3 = changed(
    LLAMA_MOE,
    {
        "layers.{i}.self_attn.q_a_proj.{p}": "layers.{i}.self_attn.q_a_proj.{p}",
        "layers.{i}.self_attn.q_a_layernorm.weight": "layers.{i}.self_attn.q_a_norm.weight",
        "layers.{i}.self_attn.q_b_proj.weight": (QUERIES, "latent_queries"),
        "layers.{i}.self_attn.q_proj.weight": (QUERIES, "latent_queries"),
        "layers.{i}.self_attn.kv_a_proj_with_mqa.{p}": (
            "layers.{i}.self_attn.kv_a_proj.(latent|rope).{p}",
            "latent_and_rotary_key",
        ),
        "layers.{i}.self_attn.kv_a_layernorm.weight": "layers.{i}.self_attn.kv_a_norm.weight",
        "layers.{i}.self_attn.kv_b_proj.weight": ("layers.{i}.self_attn.(k|v)_b_proj.weight", "latent_keys_values"),
    },
)
QWEN3_NEXT = changed(
    LLAMA_MOE,
    {
        "layers.{i}.input_layernorm.weight": ("layers.{i}.(self_attn|mixer)_norm.weight", EITHER),
        "layers.{i}.self_attn.q_proj.{p}": ("layers.{i}.self_attn.(q|gate)_proj.{p}", "query_and_gate"),
        "layers.{i}.linear_attn.in_proj_qkvz.weight": ("layers.{i}.mixer.in_proj.(q|k|v|z).weight", "delta_qkvz"),
        "layers.{i}.linear_attn.in_proj_ba.weight": ("layers.{i}.mixer.in_proj.(b|a).weight", "delta_ba"),
        "layers.{i}.linear_attn.conv1d.weight": ("layers.{i}.mixer.conv1d.weight", "depthwise"),
        "layers.{i}.linear_attn.dt_bias": "layers.{i}.mixer.dt_bias",
        "layers.{i}.linear_attn.A_log": "layers.{i}.mixer.A_log",
        "layers.{i}.linear_attn.norm.weight": "layers.{i}.mixer.norm.weight",
        "layers.{i}.linear_attn.out_proj.weight": "layers.{i}.mixer.out_proj.weight",
    },
)
