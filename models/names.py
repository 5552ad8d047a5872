"""What files call the tensors of a model: one table a family, from the file's name to ours.

A key is a name in a file, without the prefix of the base model (`PREFIXES`). A value is our name, or our name and the
layout of the tensor, a function of `models.layouts`; `NOTHING` is a constant or a part that our models do not have.
Places: `{i}` a layer, `{e}` an expert, `{p}` weight or bias, `{qkvo}` one of four projections, `{ffn}` gate, up or
down, `{stack}` encoder or decoder. `(q|k|v)` names one of our tensors each, in the order in which the layout gives
them, and `*` each expert. Where several keys match, the first one counts.
Source: the Hugging Face classes of these model types, and the checkpoints that are published for them.
"""

from __future__ import annotations

Table = dict[str, str | tuple[str, str]]

NOTHING = ""
EITHER, SPARE = "either", "spare"  # our one name that the model has; a head for another task, left out if it has none

PLACES = {
    "i": r"\d+", "e": r"\d+", "p": "weight|bias", "qkvo": "[qkvo]", "ffn": "gate|up|down", "stack": "encoder|decoder",
}  # fmt: skip
PREFIXES = (
    "model.", "transformer.", "gpt_neox.", "backbone.", "bert.", "roberta.", "distilbert.transformer.", "distilbert.",
    "biogpt.",
)  # fmt: skip
OLD_ENDS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


def changed(table: Table, *changes: Table) -> Table:
    """A table with other rules in place of, and in front of, its own."""
    for change in changes:
        table = change | {name: rule for name, rule in table.items() if name not in change}
    return table


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

GPT2: Table = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "embed_positions.weight",
    "ln_f.{p}": "norm.{p}",
    "lm_head.weight": "lm_head.weight",
    "h.{i}.attn.bias": NOTHING,
    "h.{i}.attn.masked_bias": NOTHING,
    "h.{i}.ln_1.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.attn.c_attn.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "transposed_qkv"),
    "h.{i}.attn.c_proj.{p}": ("layers.{i}.self_attn.o_proj.{p}", "transposed"),
    "h.{i}.ln_2.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.mlp.c_fc.{p}": ("layers.{i}.mlp.up_proj.{p}", "transposed"),
    "h.{i}.mlp.c_proj.{p}": ("layers.{i}.mlp.down_proj.{p}", "transposed"),
}
GPT_BIGCODE = changed(
    GPT2,
    {
        "h.{i}.attn.c_attn.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "qkv_groups"),
        "h.{i}.attn.c_proj.{p}": "layers.{i}.self_attn.o_proj.{p}",
        "h.{i}.mlp.c_fc.{p}": "layers.{i}.mlp.up_proj.{p}",
        "h.{i}.mlp.c_proj.{p}": "layers.{i}.mlp.down_proj.{p}",
    },
)
GPTJ: Table = {
    "wte.weight": "embed_tokens.weight",
    "ln_f.{p}": "norm.{p}",
    "lm_head.{p}": "lm_head.{p}",
    "h.{i}.attn.bias": NOTHING,
    "h.{i}.attn.masked_bias": NOTHING,
    "h.{i}.ln_1.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.attn.q_proj.weight": ("layers.{i}.self_attn.q_proj.weight", "rotary_neighbours"),
    "h.{i}.attn.k_proj.weight": ("layers.{i}.self_attn.k_proj.weight", "rotary_neighbours"),
    "h.{i}.attn.v_proj.weight": "layers.{i}.self_attn.v_proj.weight",
    "h.{i}.attn.out_proj.weight": "layers.{i}.self_attn.o_proj.weight",
    "h.{i}.mlp.fc_in.{p}": "layers.{i}.mlp.up_proj.{p}",
    "h.{i}.mlp.fc_out.{p}": "layers.{i}.mlp.down_proj.{p}",
}
GPT_NEO: Table = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "embed_positions.weight",
    "ln_f.{p}": "norm.{p}",
    "lm_head.weight": "lm_head.weight",
    "h.{i}.attn.attention.bias": NOTHING,
    "h.{i}.attn.attention.masked_bias": NOTHING,
    "h.{i}.ln_1.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.attn.attention.{qkvo}_proj.weight": "layers.{i}.self_attn.{qkvo}_proj.weight",
    "h.{i}.attn.attention.out_proj.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "h.{i}.ln_2.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.mlp.c_fc.{p}": "layers.{i}.mlp.up_proj.{p}",
    "h.{i}.mlp.c_proj.{p}": "layers.{i}.mlp.down_proj.{p}",
}
GPT_NEOX: Table = {
    "embed_in.weight": "embed_tokens.weight",
    "final_layer_norm.{p}": "norm.{p}",
    "embed_out.weight": "lm_head.weight",
    "lm_head.weight": "lm_head.weight",
    "rotary_emb.inv_freq": NOTHING,
    "layers.{i}.attention.rotary_emb.inv_freq": NOTHING,
    "layers.{i}.attention.bias": NOTHING,
    "layers.{i}.attention.masked_bias": NOTHING,
    "layers.{i}.input_layernorm.{p}": "layers.{i}.self_attn_norm.{p}",
    "layers.{i}.attention.query_key_value.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "qkv_groups"),
    "layers.{i}.attention.dense.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "layers.{i}.post_attention_layernorm.{p}": "layers.{i}.mlp_norm.{p}",
    "layers.{i}.mlp.dense_h_to_4h.{p}": "layers.{i}.mlp.up_proj.{p}",
    "layers.{i}.mlp.dense_4h_to_h.{p}": "layers.{i}.mlp.down_proj.{p}",
}
FALCON: Table = {
    "word_embeddings.weight": "embed_tokens.weight",
    "ln_f.{p}": "norm.{p}",
    "lm_head.weight": "lm_head.weight",
    "h.{i}.self_attention.rotary_emb.inv_freq": NOTHING,
    "h.{i}.input_layernorm.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.ln_attn.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.self_attention.query_key_value.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "qkv_groups"),
    "h.{i}.self_attention.dense.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "h.{i}.post_attention_layernorm.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.ln_mlp.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.mlp.dense_h_to_4h.{p}": "layers.{i}.mlp.up_proj.{p}",
    "h.{i}.mlp.dense_4h_to_h.{p}": "layers.{i}.mlp.down_proj.{p}",
}
BLOOM = changed(FALCON, {"word_embeddings_layernorm.{p}": "embed_norm.{p}"})
OPT: Table = {
    "decoder.embed_tokens.weight": "embed_tokens.weight",
    "decoder.embed_positions.weight": "embed_positions.weight",
    "decoder.final_layer_norm.{p}": "norm.{p}",
    "lm_head.weight": "lm_head.weight",
    "decoder.layers.{i}.self_attn_layer_norm.{p}": "layers.{i}.self_attn_norm.{p}",
    "decoder.layers.{i}.self_attn.out_proj.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "decoder.layers.{i}.self_attn.{qkvo}_proj.{p}": "layers.{i}.self_attn.{qkvo}_proj.{p}",
    "decoder.layers.{i}.final_layer_norm.{p}": "layers.{i}.mlp_norm.{p}",
    "decoder.layers.{i}.fc1.{p}": "layers.{i}.mlp.up_proj.{p}",
    "decoder.layers.{i}.fc2.{p}": "layers.{i}.mlp.down_proj.{p}",
}
BIOGPT = {name.removeprefix("decoder."): rule for name, rule in OPT.items()} | {
    "layer_norm.{p}": "norm.{p}",
    "output_projection.weight": "lm_head.weight",
}

MAMBA2: Table = {
    "embeddings.weight": "embed_tokens.weight",
    "norm_f.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
    "layers.{i}.norm.weight": "layers.{i}.mixer_norm.weight",
    "layers.{i}.mixer.in_proj.{p}": ("layers.{i}.mixer.in_proj.(z|x|b|c|dt).{p}", "mamba2_in_proj"),
    "layers.{i}.mixer.conv1d.weight": ("layers.{i}.mixer.conv1d.weight", "depthwise"),
    "layers.{i}.mixer.conv1d.bias": "layers.{i}.mixer.conv1d.bias",
    "layers.{i}.mixer.dt_bias": "layers.{i}.mixer.dt_bias",
    "layers.{i}.mixer.A_log": "layers.{i}.mixer.A_log",
    "layers.{i}.mixer.D": "layers.{i}.mixer.D",
    "layers.{i}.mixer.norm.weight": "layers.{i}.mixer.norm.weight",
    "layers.{i}.mixer.out_proj.{p}": "layers.{i}.mixer.out_proj.{p}",
}
NEMOTRON_H = changed(
    MAMBA2,
    {
        "layers.{i}.norm.weight": ("layers.{i}.(mixer|self_attn|mlp)_norm.weight", EITHER),
        "layers.{i}.mixer.{qkvo}_proj.weight": "layers.{i}.self_attn.{qkvo}_proj.weight",
        "layers.{i}.mixer.{ffn}_proj.{p}": "layers.{i}.mlp.{ffn}_proj.{p}",
        "layers.{i}.mixer.gate.weight": "layers.{i}.mlp.router.weight",
        "layers.{i}.mixer.gate.e_score_correction_bias": "layers.{i}.mlp.correction_bias",
        "layers.{i}.mixer.experts.{e}.{ffn}_proj.weight": "layers.{i}.mlp.experts.{e}.{ffn}_proj.weight",
        "layers.{i}.mixer.experts.{ffn}_proj": ("layers.{i}.mlp.experts.*.{ffn}_proj.weight", "experts"),
        "layers.{i}.mixer.shared_experts.{ffn}_proj.{p}": "layers.{i}.mlp.shared_expert.{ffn}_proj.{p}",
    },
)

BERT: Table = {
    "embeddings.word_embeddings.weight": "embed_tokens.weight",
    "embeddings.position_embeddings.weight": "embed_positions.weight",
    "embeddings.token_type_embeddings.weight": "embed_types.weight",
    "embeddings.LayerNorm.{p}": "embed_norm.{p}",
    "embeddings.position_ids": NOTHING,
    "encoder.layer.{i}.attention.self.query.{p}": "layers.{i}.self_attn.q_proj.{p}",
    "encoder.layer.{i}.attention.self.key.{p}": "layers.{i}.self_attn.k_proj.{p}",
    "encoder.layer.{i}.attention.self.value.{p}": "layers.{i}.self_attn.v_proj.{p}",
    "encoder.layer.{i}.attention.output.dense.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "encoder.layer.{i}.attention.output.LayerNorm.{p}": "layers.{i}.self_attn_norm.{p}",
    "encoder.layer.{i}.intermediate.dense.{p}": "layers.{i}.mlp.up_proj.{p}",
    "encoder.layer.{i}.output.dense.{p}": "layers.{i}.mlp.down_proj.{p}",
    "encoder.layer.{i}.output.LayerNorm.{p}": "layers.{i}.mlp_norm.{p}",
    "cls.predictions.transform.dense.{p}": ("transform.dense.{p}", SPARE),
    "cls.predictions.transform.LayerNorm.{p}": ("transform.norm.{p}", SPARE),
    "cls.predictions.decoder.{p}": ("lm_head.{p}", SPARE),
    "cls.predictions.bias": ("lm_head.bias", SPARE),
    "cls.seq_relationship.{p}": ("classifier.{p}", SPARE),
    "pooler.dense.{p}": ("pooler.{p}", SPARE),
}
ROBERTA = changed(
    BERT,
    {
        "lm_head.dense.{p}": ("transform.dense.{p}", SPARE),
        "lm_head.layer_norm.{p}": ("transform.norm.{p}", SPARE),
        "lm_head.decoder.{p}": ("lm_head.{p}", SPARE),
        "lm_head.bias": ("lm_head.bias", SPARE),
    },
)
DISTILBERT: Table = {
    "embeddings.word_embeddings.weight": "embed_tokens.weight",
    "embeddings.position_embeddings.weight": "embed_positions.weight",
    "embeddings.LayerNorm.{p}": "embed_norm.{p}",
    "layer.{i}.attention.q_lin.{p}": "layers.{i}.self_attn.q_proj.{p}",
    "layer.{i}.attention.k_lin.{p}": "layers.{i}.self_attn.k_proj.{p}",
    "layer.{i}.attention.v_lin.{p}": "layers.{i}.self_attn.v_proj.{p}",
    "layer.{i}.attention.out_lin.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "layer.{i}.sa_layer_norm.{p}": "layers.{i}.self_attn_norm.{p}",
    "layer.{i}.ffn.lin1.{p}": "layers.{i}.mlp.up_proj.{p}",
    "layer.{i}.ffn.lin2.{p}": "layers.{i}.mlp.down_proj.{p}",
    "layer.{i}.output_layer_norm.{p}": "layers.{i}.mlp_norm.{p}",
    "vocab_transform.{p}": ("transform.dense.{p}", SPARE),
    "vocab_layer_norm.{p}": ("transform.norm.{p}", SPARE),
    "vocab_projector.{p}": ("lm_head.{p}", SPARE),
}

T5: Table = {
    "shared.weight": "embed_tokens.weight",
    "{stack}.embed_tokens.weight": "{stack}.embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "{stack}.final_layer_norm.weight": "{stack}.norm.weight",
    "{stack}.block.{i}.layer.0.layer_norm.weight": "{stack}.layers.{i}.self_attn_norm.weight",
    "{stack}.block.{i}.layer.0.SelfAttention.{qkvo}.weight": "{stack}.layers.{i}.self_attn.{qkvo}_proj.weight",
    "{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight": (
        "{stack}.layers.{i}.self_attn.relative_attention_bias.weight"
    ),
    "encoder.block.{i}.layer.1.layer_norm.weight": "encoder.layers.{i}.mlp_norm.weight",
    "encoder.block.{i}.layer.1.DenseReluDense.wi.weight": "encoder.layers.{i}.mlp.up_proj.weight",
    "encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight": "encoder.layers.{i}.mlp.gate_proj.weight",
    "encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight": "encoder.layers.{i}.mlp.up_proj.weight",
    "encoder.block.{i}.layer.1.DenseReluDense.wo.weight": "encoder.layers.{i}.mlp.down_proj.weight",
    "decoder.block.{i}.layer.1.layer_norm.weight": "decoder.layers.{i}.cross_attn_norm.weight",
    "decoder.block.{i}.layer.1.EncDecAttention.{qkvo}.weight": "decoder.layers.{i}.cross_attn.{qkvo}_proj.weight",
    "decoder.block.{i}.layer.1.EncDecAttention.relative_attention_bias.weight": NOTHING,  # stored once, never used
    "decoder.block.{i}.layer.2.layer_norm.weight": "decoder.layers.{i}.mlp_norm.weight",
    "decoder.block.{i}.layer.2.DenseReluDense.wi.weight": "decoder.layers.{i}.mlp.up_proj.weight",
    "decoder.block.{i}.layer.2.DenseReluDense.wi_0.weight": "decoder.layers.{i}.mlp.gate_proj.weight",
    "decoder.block.{i}.layer.2.DenseReluDense.wi_1.weight": "decoder.layers.{i}.mlp.up_proj.weight",
    "decoder.block.{i}.layer.2.DenseReluDense.wo.weight": "decoder.layers.{i}.mlp.down_proj.weight",
}
BART: Table = {
    "shared.weight": "embed_tokens.weight",
    "{stack}.embed_tokens.weight": "{stack}.embed_tokens.weight",
    "{stack}.embed_positions.weight": "{stack}.embed_positions.weight",
    "{stack}.layernorm_embedding.{p}": "{stack}.embed_norm.{p}",
    "{stack}.layer_norm.{p}": "{stack}.norm.{p}",
    "lm_head.weight": "lm_head.weight",
    "final_logits_bias": ("lm_head.bias", "row"),
    "{stack}.layers.{i}.self_attn.out_proj.{p}": "{stack}.layers.{i}.self_attn.o_proj.{p}",
    "{stack}.layers.{i}.self_attn.{qkvo}_proj.{p}": "{stack}.layers.{i}.self_attn.{qkvo}_proj.{p}",
    "{stack}.layers.{i}.self_attn_layer_norm.{p}": "{stack}.layers.{i}.self_attn_norm.{p}",
    "decoder.layers.{i}.encoder_attn.out_proj.{p}": "decoder.layers.{i}.cross_attn.o_proj.{p}",
    "decoder.layers.{i}.encoder_attn.{qkvo}_proj.{p}": "decoder.layers.{i}.cross_attn.{qkvo}_proj.{p}",
    "decoder.layers.{i}.encoder_attn_layer_norm.{p}": "decoder.layers.{i}.cross_attn_norm.{p}",
    "{stack}.layers.{i}.fc1.{p}": "{stack}.layers.{i}.mlp.up_proj.{p}",
    "{stack}.layers.{i}.fc2.{p}": "{stack}.layers.{i}.mlp.down_proj.{p}",
    "{stack}.layers.{i}.final_layer_norm.{p}": "{stack}.layers.{i}.mlp_norm.{p}",
}
MARIAN = changed(BART, {"{stack}.embed_positions.weight": NOTHING})  # sinusoids, which the model computes
WHISPER = changed(
    BART,
    {
        "proj_out.weight": "lm_head.weight",
        "encoder.conv1.{p}": "encoder.conv1.{p}",
        "encoder.conv2.{p}": "encoder.conv2.{p}",
    },
)

# model_type of a config.json: its table.
HUGGING_FACE: dict[str, Table] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "olmo", "seed_oss", "smollm3", "arcee", "cwm",
            "eurobert",
        ),
        LLAMA,
    ),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "dots1", "glm4_moe"), LLAMA_MOE),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), DEEPSEEK_V3),
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5", "helium"), COHERE),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    **dict.fromkeys(("bart", "mbart", "pegasus", "plbart", "blenderbot"), BART),
    "gemma2": GEMMA2, "gemma3_text": GEMMA2, "vaultgemma": VAULTGEMMA, "olmo2": OLMO2, "olmo3": OLMO2,
    "exaone4": OLMO2, "flex_olmo": FLEX_OLMO, "phi3": PHI3, "glm": GLM, "glm4": GLM4, "stablelm": STABLELM,
    "jais2": STABLELM, "starcoder2": STARCODER2, "nemotron": NEMOTRON, "persimmon": PERSIMMON, "phi": PHI,
    "mixtral": MIXTRAL, "minimax_m2": MINIMAX_M2, "gpt_oss": GPT_OSS, "qwen3_next": QWEN3_NEXT, "gpt2": GPT2,
    "gpt_bigcode": GPT_BIGCODE, "gptj": GPTJ, "gpt_neo": GPT_NEO, "gpt_neox": GPT_NEOX, "falcon": FALCON,
    "bloom": BLOOM, "opt": OPT, "biogpt": BIOGPT, "mamba2": MAMBA2, "nemotron_h": NEMOTRON_H, "bert": BERT,
    "distilbert": DISTILBERT, "marian": MARIAN, "whisper": WHISPER,
}  # fmt: skip

# Keys that change what is computed and that no part of a ModelConfig has: the value that is computed here.
COMPUTED: dict[str, dict[str, object]] = {
    "gpt_oss": {"swiglu_alpha": 1.702},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "deepseek_v2": {"scoring_func": "softmax", "topk_method": "greedy"},
    "olmo": {"clip_qkv": None},
    "olmoe": {"clip_qkv": None},
    "minimax_m2": {"scoring_func": "sigmoid"},
    "roberta": {"hidden_act": "gelu"},  # that of its head is fixed
    "xlm-roberta": {"hidden_act": "gelu"},
    "camembert": {"hidden_act": "gelu"},
    "mamba2": {"hidden_act": "silu"},
    "nemotron_h": {"mamba_hidden_act": "silu"},
}
