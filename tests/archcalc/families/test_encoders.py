"""Encoder-only and encoder-decoder families against transformers: parameters and stored buffers of releases and of toys
that flip each key that changes a shape; FLOPs and caches, counted in an eager forward pass.
"""

import json
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.cost import active_parameters, bound, buffers, cache_elements, parameters, passes, total
from archcalc.eager import eager_flops
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.report import report

DATA = json.loads((Path(__file__).parents[1] / "data" / "encoders.json").read_text())
MODELS, SMALL = DATA["models"], DATA["small"]

BERT = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 100,
    "max_position_embeddings": 50,
}  # fmt: skip
DISTIL = {
    "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "vocab_size": 100, "max_position_embeddings": 50,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}
PAIR = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "vocab_size": 100, "pad_token_id": 1, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {
    "d_model": 24, "d_kv": 7, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 100, "pad_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip
LONG = PAIR | {"max_position_embeddings": 50}
SOUND = PAIR | {"num_mel_bins": 10, "max_source_positions": 32, "max_target_positions": 30}
EVERY = "Model ForMaskedLM ForSequenceClassification ForTokenClassification ForQuestionAnswering"
LM = "ForConditionalGeneration"
LOCAL = {
    "norm_bias": True, "attention_bias": True, "mlp_bias": True, "decoder_bias": False, "classifier_bias": True,
    "local_attention": 8, "global_attn_every_n_layers": 2,
}  # fmt: skip
SPARSE = {"num_decoder_layers": 2, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
ALL_SPARSE = {"num_layers": 4, "num_decoder_layers": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 4}


def toys(classes: str, tasks: str, base: dict, *variants: dict) -> list:
    """The toy as it is and with each variant, under every class of the model type, which `classes` names first."""
    model_type, prefix = classes.split()
    return [
        pytest.param(prefix + task, base | variant | {"model_type": model_type}, id=f"{prefix}{task}-{number}")
        for task in tasks.split()
        for number, variant in enumerate(({}, *variants))
    ]


ONE_TYPE = {"type_vocab_size": 1, "num_labels": 5}
NARROW, SQUARE = {"embedding_size": 12}, {"embedding_size": 24}
BURIED = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
PROJECTED = BURIED | {"pos_att_type": ["p2c"], "max_relative_positions": 20}
V3 = BURIED | {
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "max_relative_positions": -1,
}
GATED, WIDER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True}, {"num_decoder_layers": 3}
FEWER = {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 16}
TOYS = [
    *toys("bert Bert", EVERY + " ForPreTraining", BERT, ONE_TYPE),
    *toys("roberta Roberta", EVERY, BERT, ONE_TYPE),
    *toys("xlm-roberta XLMRoberta", EVERY, BERT, ONE_TYPE),
    *toys("camembert Camembert", EVERY, BERT),
    *toys("distilbert DistilBert", EVERY, DISTIL, {"sinusoidal_pos_embds": True}),
    *toys("electra Electra", EVERY + " ForPreTraining", BERT | NARROW, SQUARE, {"type_vocab_size": 3}),
    *toys("albert Albert", EVERY + " ForPreTraining", BERT | NARROW, SQUARE, {"num_hidden_groups": 2}),
    *toys("mpnet MPNet", EVERY, BERT, {"relative_attention_num_buckets": 8}),
    *toys("esm Esm", EVERY.replace(" ForQuestionAnswering", ""), BERT | {"pad_token_id": 1, "mask_token_id": 2},
          {"position_embedding_type": "rotary", "token_dropout": True}, {"emb_layer_norm_before": True}),
    *toys("nomic_bert NomicBert", EVERY.replace(" ForQuestionAnswering", ""), BERT, ONE_TYPE),
    *toys("modernbert ModernBert", EVERY, BERT | TOKENS, LOCAL, {"tie_word_embeddings": False}),
    *toys("deberta-v2 DebertaV2", EVERY, BERT, BURIED, PROJECTED, V3, {"type_vocab_size": 2, "legacy": False}),
    *toys("eurobert EuroBert", EVERY.replace(" ForQuestionAnswering", ""), BERT | TOKENS, {"num_key_value_heads": 2},
          {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    *toys("bart Bart", f"{LM} Model", LONG, {"encoder_layers": 3}),
    *toys("mbart MBart", LM, LONG, {"decoder_ffn_dim": 60}),
    *toys("plbart PLBart", LM, LONG),
    *toys("pegasus Pegasus", LM, LONG),
    *toys("blenderbot Blenderbot", LM, LONG),
    *toys("blenderbot-small BlenderbotSmall", LM, LONG),
    *toys("m2m_100 M2M100", LM, LONG, {"max_position_embeddings": 90}),
    *toys("nllb-moe NllbMoe", LM, LONG | {"num_experts": 4}, {"encoder_sparse_step": 1, "decoder_sparse_step": 0},
          {"router_bias": True, "encoder_sparse_step": 2, "decoder_sparse_step": 3}),
    *toys("whisper Whisper", LM, SOUND, {"tie_word_embeddings": False}, {"max_source_positions": 20}),
    *toys("t5 T5", f"{LM} EncoderModel", T5, WIDER, GATED, FEWER),
    *toys("mt5 MT5", f"{LM} EncoderModel", T5, WIDER, GATED, FEWER),
    *toys("umt5 UMT5", f"{LM} EncoderModel", T5, WIDER, GATED, FEWER),
    *toys("switch_transformers SwitchTransformers", LM, T5 | SPARSE, ALL_SPARSE,
          {"num_layers": 4, "num_sparse_encoder_layers": 0, "router_bias": True}),
]  # fmt: skip


def config_of(architecture: str, keys: dict):
    return config_from_keys({"architectures": [architecture]} | keys)


@pytest.mark.parametrize(("architecture", "keys"), TOYS)
def test_parameters_of_toys(architecture, keys):
    pytest.importorskip("transformers")
    config, real = config_of(architecture, keys), counted(built(keys, architecture))
    rotary = keys.get("position_embedding_type") == "rotary"  # ESM stores the inverse frequencies
    assert parameters(config) == sum(real.values()) - real["buffers"]
    assert buffers(config) == real["buffers"] - rotary * (keys["hidden_size"] // 8 if rotary else 0)
    assert report(config)["parameters"]["total"] == parameters(config)
