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


AHEAD = {
    "vocab_size": 120, "hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "head_dim": 6, "max_position_embeddings": 64, "sliding_window": 8,
    "use_bidirectional_attention": True,
}  # fmt: skip


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


def first_pass(config, batch: int, tokens: int) -> int:
    return eager_flops(config, batch, tokens, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_published_models(name):
    """Marian in transformers stores its sinusoids, which are computed here; it ties the head of T5 whatever is said."""
    row = MODELS[name]
    config = config_from_keys(row["config"])
    marian = row["config"]["model_type"] == "marian"
    tables = 2 * config.max_position_embeddings * config.hidden_size if marian else 0
    head = row["untied"] - row["parameters"] if "untied" in row else 0
    assert head == (config.vocab_size * config.hidden_size if head else 0)
    assert (parameters(config), active_parameters(config)) == tuple(
        row[count] - tables + head for count in ("parameters", "active")
    )
    own, cross, _ = cache_elements(bound(config)[1], 1, 1, 1)
    assert (own, cross) == (row["self"], row["cross"])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("shape", "batch", "tokens"), [("1x16", 1, 16), ("2x64", 2, 64)])
def test_flops_and_caches_counted_in_transformers(name, shape, batch, tokens):
    row = SMALL[name]
    config = config_from_keys(row["config"])
    assert first_pass(config, batch, tokens) == row["flops"][shape]
    own, cross, _ = cache_elements(bound(config)[1], batch, tokens, config.source_tokens(tokens))
    assert {"self": own, "cross": cross} == row["cache"].get(shape, {"self": 0, "cross": 0})


# The first toy of each architecture whose ops no stored row shows, and the toys that flip what runs.
MEASURED = [
    ("BertForPreTraining", "bert", BERT), ("BertForSequenceClassification", "bert", BERT),
    ("RobertaForQuestionAnswering", "roberta", BERT), ("ElectraForMaskedLM", "electra", BERT | NARROW),
    ("ElectraForPreTraining", "electra", BERT | NARROW), ("AlbertForMaskedLM", "albert", BERT | NARROW),
    ("MPNetForMaskedLM", "mpnet", BERT), ("EsmForMaskedLM", "esm", BERT | {"pad_token_id": 1, "mask_token_id": 2}),
    ("NomicBertModel", "nomic_bert", BERT), ("ModernBertForMaskedLM", "modernbert", BERT | TOKENS | LOCAL),
    ("EuroBertForMaskedLM", "eurobert", BERT | TOKENS), ("DebertaV2ForMaskedLM", "deberta-v2", BERT | V3),
    ("DebertaV2Model", "deberta-v2", BERT | PROJECTED), ("PegasusForConditionalGeneration", "pegasus", LONG),
    ("UMT5ForConditionalGeneration", "umt5", T5 | WIDER | GATED), ("T5EncoderModel", "t5", T5),
    ("NllbMoeForConditionalGeneration", "nllb-moe", LONG | {"num_experts": 2}),
    ("Gemma3TextModel", "gemma3_text", AHEAD),
    ("SwitchTransformersForConditionalGeneration", "switch_transformers", T5 | SPARSE | {"expert_capacity": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "model_type", "keys"), MEASURED, ids=[case[0] for case in MEASURED])
def test_flops_measured_in_transformers(architecture, model_type, keys):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    keys = keys | {"model_type": model_type}
    config = transformers.AutoConfig.for_model(**keys)
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    ids = torch.full((2, 12), 7)
    inputs = {"decoder_input_ids": ids} if config_of(architecture, keys).decoder else {}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, **inputs)
    assert first_pass(config_of(architecture, keys), 2, 12) == counter.get_total_flops()


# Keys that the config.json of a release carries, and the parameters that its card or transformers gives.
RELEASES = json.loads((Path(__file__).parents[1] / "data" / "encoder_releases.json").read_text())["models"]


@pytest.mark.parametrize("name", RELEASES)
def test_releases(name):
    keys = RELEASES[name]["config"]
    config = config_from_keys(keys)
    assert parameters(config) == RELEASES[name]["parameters"]
    assert not config.assumed


def test_a_source_of_sound_has_one_length():
    config = config_from_keys(MODELS["whisper-small"]["config"])
    encode, decode = passes(config, 1, prompt=7, context=3)
    assert encode.dims["T"] == encode.dims["S"] == decode.dims["X"] == 1500
    assert total(encode) == total(passes(config, 1, prompt=300, context=3)[0])
    step = bound(config)[1]
    crosses = {cache_elements(step, 1, context, config.source_tokens(7)).cross for context in (1, 10, 448)}
    assert crosses == {12 * 2 * 768 * 1500}


def test_layers_that_share_weights_all_run():
    keys = BERT | NARROW | {"model_type": "albert"}
    configs = [config_of("AlbertModel", keys | {"num_hidden_layers": depth}) for depth in (1, 2, 3)]
    assert len({parameters(config) for config in configs}) == 1
    one, two, three = (first_pass(config, 1, 8) for config in configs)
    assert two - one == three - two > 0


def test_local_attention_sees_to_either_side():
    config = config_of("ModernBertModel", BERT | TOKENS | LOCAL | {"model_type": "modernbert", "num_hidden_layers": 2})
    run = passes(config, 1, 20, 20)[0]
    seen = sum(abs(i - j) <= 4 for i in range(20) for j in range(20))
    assert total(run, dense=True).flops - total(run).flops == 2 * 2 * 4 * 6 * (20 * 20 - seen)


def test_a_gemma_that_looks_ahead_is_an_encoder():
    config = config_of("Gemma3TextModel", AHEAD | {"model_type": "gemma3_text", "num_hidden_layers": 1})
    assert config.decoder is None and config.head.kind == "none"
    run = passes(config, 1, 20, 20)[0]
    seen = sum(abs(i - j) <= 4 for i in range(20) for j in range(20))
    assert total(run, dense=True).flops - total(run).flops == 2 * 2 * 4 * 6 * (20 * 20 - seen)
    with pytest.raises(ConfigError, match="use_bidirectional_attention=True with architectures"):
        config_of("Gemma3ForCausalLM", AHEAD | {"model_type": "gemma3_text"})


def test_classifiers_of_other_tasks_are_no_part_of_the_class():
    keys = BERT | {"model_type": "deberta-v2", "id2label": {"0": "a", "1": "b", "2": "c"}}
    name = "DebertaV2ForSequenceClassification"
    several = config_of(name, keys | {"classifiers_size": [3, 2], "tasks": ["glue/mnli", "glue/cola"]})
    assert parameters(several) == parameters(config_of(name, keys))


def test_sizes_of_absent_keys_are_assumed():
    config = config_from_keys({"model_type": "bart"})
    assert config.assumed["encoder_layers"] == config.assumed["decoder_layers"] == 12
    assert set(config_from_keys({"model_type": "whisper", "d_model": 384}).assumed) > {"num_mel_bins"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"model_type": "bert", "architectures": ["BertForMultipleChoice"]}, "architectures='ForMultipleChoice'"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}, "second bias"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder=True"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3,
          "id2label": {"0": "a"}}, "num_labels=3"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num=2"),
        ({"model_type": "albert", "num_hidden_groups": 13}, "num_hidden_groups=13"),
        ({"model_type": "nomic_bert", "num_experts": 8}, "num_experts=8"),
        ({"model_type": "deberta-v2", "conv_kernel_size": 3}, "conv_kernel_size=3"),
        ({"model_type": "deberta-v2", "pos_att_type": "c2p|p2p"}, "pos_att_type='p2p'"),
        ({"model_type": "esm", "vocab_size": 33, "is_folding_model": True}, "is_folding_model=True"),
        ({"model_type": "esm"}, "vocab_size: missing"),
        ({"model_type": "bart", "normalize_before": True}, "normalize_before=True"),
        ({"model_type": "mbart", "tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"model_type": "bart", "architectures": ["BartForSequenceClassification"]}, "BartForSequenceClassification"),
        ({"model_type": "t5", "feed_forward_proj": "gated-swishy"}, "feed_forward_proj='gated-swishy'"),
        ({"model_type": "t5", "is_gated_act": True}, "is_gated_act=True"),
        ({"model_type": "t5", "is_encoder_decoder": False}, "is_encoder_decoder=False"),
    ],
)  # fmt: skip
def test_refused_by_name(keys, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        config_from_keys(keys)
