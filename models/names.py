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
PREFIXES = ("model.", "transformer.", "gpt_neox.", "backbone.", "bert.")
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
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "gemma2": GEMMA2, "gemma3_text": GEMMA2,
    "olmo2": OLMO2, "phi3": PHI3, "mixtral": MIXTRAL, "qwen3_moe": LLAMA_MOE, "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK_V3, "qwen3_next": QWEN3_NEXT, "gpt2": GPT2, "gpt_neox": GPT_NEOX, "falcon": FALCON,
    "mamba2": MAMBA2, "nemotron_h": NEMOTRON_H, "bert": BERT, "t5": T5, "bart": BART, "marian": MARIAN,
    "whisper": WHISPER,
}  # fmt: skip

# Keys that change what is computed and that no part of a ModelConfig has: the value that is computed here.
COMPUTED: dict[str, dict[str, object]] = {
    "gpt_oss": {"swiglu_alpha": 1.702},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "mamba2": {"hidden_act": "silu"},
    "nemotron_h": {"mamba_hidden_act": "silu"},
}
