"""The rules of the dataclasses, each family's defaults, and those defaults against the transformers library."""

import json
from pathlib import Path

import pytest

from archcalc.config import (
    Attention,
    Block,
    FeedForward,
    MixtureOfExperts,
    ModelConfig,
    Norm,
    RopeScaling,
    Rotary,
    Stack,
)
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

# The fewest keys with which each family loads, by model_type.
FAMILIES = json.loads((Path(__file__).parent / "data" / "smallest_configs.json").read_text())
GPT2, LLAMA, MARIAN = FAMILIES["gpt2"], FAMILIES["llama"], FAMILIES["marian"]
MISTRAL, MIXTRAL = FAMILIES["mistral"], FAMILIES["mixtral"]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ATTENTION = Attention(4, 2, 16)
MLP = FeedForward(64, "silu", gated=True)
NORM = Norm("rmsnorm", 1e-5)
BLOCK = Block(ATTENTION, MLP, NORM)
STACK = Stack((BLOCK,) * 2, NORM)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(4, 3, 16), "num_key_value_heads=3: must divide num_attention_heads=4; use one of 1, 2, 4"),
        (lambda: Attention(4, 8, 16), "num_key_value_heads=8: must divide"),
        (lambda: Attention(0, 1, 16), "num_attention_heads=0: must be a whole number"),
        (lambda: Attention(4, 4, 16.0), "head_dim=16.0: must be a whole number"),
        (lambda: Attention(4, 4, 15, rotary=Rotary()), "head_dim=15: rotary positions turn pairs"),
        (lambda: Attention(4, 4, 16, sliding_window=-1), "sliding_window=-1: must be"),
        (lambda: Rotary(0.0), "rope_theta=0.0: must be a positive number"),
        (lambda: Rotary(float("nan")), "rope_theta=nan: must be a positive number"),
        (lambda: RopeScaling("spiral", 2.0), "rope_scaling.rope_type='spiral': not understood; use one of linear"),
        (lambda: FeedForward(64, "tanh"), "hidden_act='tanh': not understood; use one of relu"),
        (lambda: FeedForward(True, "relu"), "intermediate_size=True: must be"),
        (lambda: MixtureOfExperts(MLP, 2, 3), "num_experts_per_tok=3: larger than num_local_experts=2"),
        (lambda: Norm("batchnorm", 1e-5), "norm='batchnorm': not understood"),
        (lambda: Norm("rmsnorm", 0.0), "norm eps=0.0: must lie between 0 and 1"),
        (lambda: Block(ATTENTION, MLP, NORM, "both"), "norm_placement='both': not understood; use one of pre, post"),
        (lambda: Block(ATTENTION, MLP, NORM, cross_attn=ATTENTION), "cross_attn.causal=True: every source token"),
        (lambda: Stack((), NORM), "num_hidden_layers=0: a stack needs a block"),
        (lambda: ModelConfig(10, 64, 8, STACK, position_embedding="alibi"), "position_embedding='alibi'"),
        (lambda: ModelConfig(10, 63, 8, STACK, position_embedding="sinusoidal"), "hidden_size=63: sinusoids"),
        (lambda: ModelConfig(10, 64, 8, STACK, encoder=STACK), "cross_attn: every decoder block has one"),
    ],
)
def test_a_broken_rule_names_field_value_and_remedy(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert ";" in str(caught.value)


def refusal(keys) -> str:
    """The message with which the keys are refused; it must be one line of readable length."""
    with pytest.raises(ConfigError) as caught:
        config_from_keys(keys)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    return message


@pytest.mark.parametrize(
    ("change", "field_value", "remedy"),
    [
        ({"hiden_act": "relu"}, "hiden_act='relu'", "did you mean hidden_act?"),
        ({"qk_norm": True}, "qk_norm=True: not understood by model_type llama", "remove it"),
        ({"hidden_size": "64"}, "hidden_size='64'", "give a positive integer"),
        ({"hidden_size": 64.0}, "hidden_size=64.0", "give a positive integer"),
        ({"hidden_size": True}, "hidden_size=True", "give a positive integer"),
        ({"hidden_size": -64}, "hidden_size=-64", "give a positive integer"),
        ({"hidden_size": [64]}, "hidden_size=[64]", "give a positive integer"),
        ({"vocab_size": 0}, "vocab_size=0", "give a positive integer"),
        ({"vocab_size": 2**31}, "vocab_size=2147483648", "at most 2147483647"),
        ({"vocab_size": 10**5000}, "vocab_size=<int too large to print>", "at most 2147483647"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers=10001", "give at most that many"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0", "give a positive integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3", "use one of 1, 2, 4"),
        ({"rope_theta": float("nan")}, "rope_theta=nan", "must be a finite number"),
        ({"rope_theta": float("inf")}, "rope_theta=inf", "must be a finite number"),
        ({"rope_theta": 10**400}, "rope_theta=1000", "must be a finite number"),
        ({"rope_theta": True}, "rope_theta=True", "must be a finite number"),
        ({"rope_theta": -1}, "rope_theta=-1.0", "must be a positive number"),
        ({"rms_norm_eps": 1}, "rms_norm_eps=1", "1e-05 is usual"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1", "must be true or false"),
        ({"tie_word_embeddings": "true"}, "tie_word_embeddings='true'", "must be true or false"),
        ({"hidden_act": "mish"}, "hidden_act='mish'", "use one of silu"),
        ({"hidden_act": 3}, "hidden_act=3", "use one of silu"),
        ({"norm_placement": "middle"}, "norm_placement='middle'", "use one of pre, post"),
        ({"rope_interleaved": True}, "rope_interleaved=True", "set it to False"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True", "set it to False"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 entries with num_hidden_layers=2", "give 2"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types='sliding_attention'", "give sliding_window"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types='linear_attention'", "use one of full_attention"),
        ({"layer_types": "full_attention"}, "layer_types='full_attention'", "must be a list of strings"),
        ({"sliding_window": 0}, "sliding_window=0", "give a positive integer"),
        ({"rope_scaling": 2}, "rope_scaling=2", "must be an object"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "rope_scaling.rope_type='spiral'", "use one of"),
        ({"rope_scaling": {"type": "helix", "factor": 4.0}}, "rope_scaling.type='helix'", "use one of default"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor=4.0", "fix or remove it"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling.factor=0.5", "must be at least 1"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: missing", "give factor"),
        ({"rope_scaling": LLAMA3_ROPE | {"dropout": 0.1}}, "rope_scaling.dropout=0.1", "fix or remove it"),
        ({"rope_theta": 2.0, "rope_parameters": {"rope_theta": 3.0}}, "rope_theta=2.0", "give only one"),
        ({"rope_scaling": LLAMA3_ROPE, "rope_parameters": {"rope_theta": 3.0}}, "rope_scaling with", "give only one"),
    ],
)
def test_refused_with_field_value_and_remedy(change, field_value, remedy):
    message = refusal(LLAMA | change)
    assert message.startswith(field_value)
    assert remedy in message


def test_head_dim_that_is_not_whole():
    assert refusal(LLAMA | {"hidden_size": 5140, "num_attention_heads": 40}) == (
        "num_attention_heads=40 with hidden_size=5140: head_dim would be 128.5; give head_dim or fix hidden_size"
    )


ALWAYS = ("num_key_value_heads",)
OPTIONAL = {"gpt2": (*ALWAYS, "vocab_size", "n_positions")}  # every release has the same two


def test_an_absent_key_that_a_release_fixes_is_assumed_and_said():
    keys = {name: value for name, value in FAMILIES["gpt2"].items() if name not in ("vocab_size", "n_positions")}
    assert config_from_keys(keys).assumed == {"vocab_size": 50257, "max_position_embeddings": 1024}
    assert config_from_keys(FAMILIES["gpt2"]).assumed == {}


@pytest.mark.parametrize(
    ("model_type", "size"),
    [(family, size) for family, keys in FAMILIES.items() for size in keys if size not in OPTIONAL.get(family, ALWAYS)],
)
def test_a_missing_size_is_never_guessed(model_type, size):
    keys = {name: value for name, value in FAMILIES[model_type].items() if name != size}
    message = refusal(keys)
    assert "missing, and never guessed; give" in message
    assert size in message


def test_missing_size_names_a_key_that_may_be_meant():
    keys = {("hiden_size" if name == "hidden_size" else name): value for name, value in LLAMA.items()}
    assert "did you mean hiden_size?" in refusal(keys)


def first_block(keys, **change):
    return config_from_keys(keys | change).decoder.layers[0]


def test_llama_defaults():
    config, block = config_from_keys(LLAMA), first_block(LLAMA)
    assert block == Block(
        Attention(4, 4, 16, rotary=Rotary(10000.0)), FeedForward(96, "silu", True), Norm("rmsnorm", 1e-6)
    )
    assert (config.tie_word_embeddings, config.position_embedding, config.encoder) == (False, "none", None)


def test_mistral_window_absent_null_and_given():
    assert first_block(MISTRAL).self_attn.sliding_window == 4096
    assert first_block(MISTRAL, sliding_window=None).self_attn.sliding_window is None
    assert first_block(MISTRAL, sliding_window=9).self_attn.sliding_window == 9


def test_mistral_key_value_heads_absent_and_null():
    absent = {name: value for name, value in MISTRAL.items() if name != "num_key_value_heads"}
    assert first_block(absent, num_attention_heads=16).self_attn.num_key_value_heads == 8
    assert first_block(absent, num_attention_heads=16, num_key_value_heads=None).self_attn.num_key_value_heads == 16


def test_mixtral_defaults_and_alias():
    block = first_block(MIXTRAL)
    assert block.mlp == MixtureOfExperts(FeedForward(96, "silu", True), 4, 2)
    assert (block.self_attn.rotary.rope_theta, block.norm.eps, block.self_attn.sliding_window) == (1e6, 1e-5, None)
    renamed = {("num_experts" if name == "num_local_experts" else name): value for name, value in MIXTRAL.items()}
    assert config_from_keys(renamed) == config_from_keys(MIXTRAL)


def test_gpt2_defaults():
    config, block = config_from_keys(GPT2), first_block(GPT2)
    assert block.mlp == FeedForward(256, "gelu_tanh", gated=False, bias=True)
    assert block.self_attn == Attention(4, 4, 16, True, True, True, True)
    assert (config.tie_word_embeddings, config.position_embedding) == (True, "learned")
    assert config.decoder.final_norm == Norm("layernorm", 1e-5)


def test_marian_stacks_have_their_own_sizes():
    config = config_from_keys(MARIAN)
    encoder, decoder = config.encoder.layers, config.decoder.layers
    assert (len(encoder), len(decoder)) == (2, 3)
    assert (encoder[0].self_attn.num_attention_heads, decoder[0].self_attn.num_attention_heads) == (4, 8)
    assert (encoder[0].mlp.intermediate_size, decoder[0].mlp.intermediate_size) == (96, 128)
    assert (encoder[0].self_attn.causal, decoder[0].self_attn.causal, decoder[0].cross_attn.causal) == (
        False,
        True,
        False,
    )
    assert decoder[0].cross_attn.num_attention_heads == 8


@pytest.mark.parametrize(
    ("change", "placement", "has_final_norm"),
    [
        ({}, "post", False),
        ({"normalize_before": False, "add_final_layer_norm": False}, "post", False),
        ({"normalize_before": True}, "pre", True),
        ({"norm_placement": "pre"}, "pre", True),
        ({"add_final_layer_norm": True}, "post", True),
    ],
)
def test_marian_norms(change, placement, has_final_norm):
    config = config_from_keys(MARIAN | change)
    for stack in config.stacks.values():
        assert (stack.layers[0].norm_placement, stack.final_norm is not None) == (placement, has_final_norm)


def test_marian_norm_placement_replaces_its_own_keys():
    keys = MARIAN | {"normalize_before": False, "add_final_layer_norm": False}
    assert config_from_keys(keys, {"norm_placement": "pre"}) == config_from_keys(MARIAN | {"normalize_before": True})
    with pytest.raises(ConfigError, match="norm_placement='pre' with normalize_before=False: they disagree"):
        config_from_keys(keys | {"norm_placement": "pre"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_vocab_size": 7}, "decoder_vocab_size=7: the stacks have one vocabulary"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False: this family has an encoder"),
        ({"static_position_embeddings": False, "extra_pos_embeddings": 2}, "extra_pos_embeddings=2: learned tables"),
        (
            {"num_attention_heads": 4, "decoder_attention_heads": None, "num_key_value_heads": 3},
            "num_key_value_heads=3",
        ),
    ],
)
def test_marian_refuses(change, message):
    with pytest.raises(ConfigError) as caught:
        config_from_keys(MARIAN | change)
    assert str(caught.value).startswith(message)


def test_marian_positions_and_embeddings():
    config = config_from_keys(MARIAN)
    assert (config.position_embedding, config.tie_word_embeddings, config.share_embeddings) == (
        "sinusoidal",
        True,
        True,
    )
    change = {"static_position_embeddings": False, "share_encoder_decoder_embeddings": False, "scale_embedding": True}
    config = config_from_keys(MARIAN | change | {"tie_word_embeddings": False})
    assert (config.position_embedding, config.tie_word_embeddings, config.share_embeddings) == ("learned", False, False)
    assert config.scale_embedding


@pytest.mark.parametrize("keys", [LLAMA, GPT2, MARIAN])
def test_layer_types_give_blocks_of_two_kinds(keys):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = config_from_keys(keys, {"num_hidden_layers": 3, "layer_types": kinds, "sliding_window": 5})
    layers = config.decoder.layers
    assert [block.self_attn.sliding_window for block in layers] == [5, None, 5]
    assert layers[0] is layers[2]


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default", "rope_theta": 10000.0}])
def test_default_rope_scaling_is_none(scaling):
    assert config_from_keys(LLAMA | {"rope_scaling": scaling}) == config_from_keys(LLAMA)


def test_linear_rope_scaling_under_both_spellings():
    old = first_block(LLAMA, rope_scaling={"type": "linear", "factor": 2})
    new = first_block(LLAMA, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000})
    assert old == new
    assert old.self_attn.rotary == Rotary(10000.0, RopeScaling("linear", 2.0))


ORACLE = [("LlamaConfig", LLAMA), ("MistralConfig", MISTRAL), ("MixtralConfig", MIXTRAL), ("GPT2Config", GPT2)]


@pytest.mark.parametrize(("name", "keys"), [*ORACLE, ("MarianConfig", MARIAN)], ids=lambda value: str(value)[:12])
def test_what_transformers_writes_is_read_the_same(name, keys):
    """The defaults that transformers fills in and writes out are the ones that absent keys get here."""
    transformers = pytest.importorskip("transformers", reason="the oracle is the transformers library")
    extra = {"decoder_vocab_size": 100} if name == "MarianConfig" else {}
    theirs = getattr(transformers, name)(**{k: v for k, v in (keys | extra).items() if k != "model_type"})
    written = json.loads(theirs.to_json_string(use_diff=False))
    assert config_from_keys(written) == config_from_keys(keys | extra)


def test_a_chunk_needs_a_causal_mask():
    with pytest.raises(ConfigError, match=r"attention_chunk_size=4 with causal=False: .*drop one"):
        Attention(4, 4, 8, attention_chunk_size=4, causal=False)
