"""Encoders, and encoders with a decoder."""

from __future__ import annotations

from models.names.rules import NOTHING, SPARE, Table, changed

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
