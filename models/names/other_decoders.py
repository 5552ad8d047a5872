"""Decoders that have names of their own: GPT and its kin, OPT, state spaces."""

from __future__ import annotations

from models.names.rules import EITHER, NOTHING, Table, changed

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
