"""Reading config.json: what is understood gives the right fields, and all else is refused by name with a remedy."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archcalc.config import RopeScaling
from archcalc.cost import parameters
from archcalc.errors import ConfigError
from archcalc.hf import LARGEST_FILE, config_from_keys, load_config, parse_override
from archcalc.keys import Keys

# The fewest keys with which each family loads, by model_type.
FAMILIES = json.loads((Path(__file__).parent / "data" / "smallest_configs.json").read_text())
LLAMA, GPT2, MARIAN = FAMILIES["llama"], FAMILIES["gpt2"], FAMILIES["marian"]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def refusal(keys, overrides=None) -> str:
    """The message with which the keys are refused; it must be one line of readable length."""
    with pytest.raises(ConfigError) as caught:
        config_from_keys(keys, overrides)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    return message


@pytest.mark.parametrize("model_type", [None, "lama", "no-such", 3, [], "x" * 10_000])
def test_unknown_model_type(model_type):
    message = refusal(LLAMA | {"model_type": model_type})
    assert message.startswith("model_type")
    assert "`archcalc families` lists" in message
    assert ("did you mean llama?" in message) == (model_type == "lama")


def test_two_names_of_one_thing():
    assert refusal(GPT2 | {"hidden_size": 128}).startswith("hidden_size=128 with n_embd=64")
    assert config_from_keys(GPT2 | {"hidden_size": 64}) == config_from_keys(GPT2)
    assert refusal(MARIAN | {"num_hidden_layers": 3}).startswith("num_hidden_layers=3 with encoder_layers=2")
    assert config_from_keys(MARIAN | {"num_hidden_layers": 2}) == config_from_keys(MARIAN)  # the encoder's, as written


@pytest.mark.parametrize("keys", [{1: 2}, {"a\nb": 1}, {"\x1b[31m" * 100: 1}, {"k": "\n" * 10**6}])
def test_a_hostile_key_stays_one_readable_line(keys):
    refusal(LLAMA | keys)


@pytest.mark.parametrize("keys", [None, [], "llama", 3])
def test_keys_must_be_an_object(keys):
    assert "must be an object" in refusal(keys)


def test_null_is_absent_and_harmless_keys_are_skipped():
    extra = {"rope_scaling": None, "head_dim": None, "attention_dropout": 0.1, "torch_dtype": "bfloat16", "qk": None}
    assert config_from_keys(LLAMA | extra) == config_from_keys(LLAMA)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["LlamaForCausalLM"], "lm"),
        (["GPT2LMHeadModel"], "lm"),
        (["MarianMTModel"], "lm"),
        (["XLMWithLMHeadModel"], "lm"),
        (["MiniMaxM3SparseForConditionalGeneration"], "lm"),
        (["DeciLMForCausalLM"], "lm"),
        (["LlamaModel"], "none"),
        (["LongformerModel"], "none"),
        (["BertForMaskedLM"], "mlm"),
        (["LlamaForCausalLM", "MistralForCausalLM"], "lm"),
        ([], None),
        (None, None),
    ],
)
def test_the_end_of_a_class_says_what_a_model_ends_in(names, kind):
    assert Keys({"architectures": names}).architecture() == kind


def test_a_bare_model_counts_without_a_head():
    whole = config_from_keys(LLAMA | {"architectures": ["LlamaForCausalLM"]})
    assert whole == config_from_keys(LLAMA)
    bare = config_from_keys(LLAMA | {"architectures": ["LlamaModel"]})
    assert bare.head.kind == "none"
    assert parameters(whole) - parameters(bare) == LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert parameters(config_from_keys(GPT2 | {"architectures": ["GPT2Model"]})) == parameters(config_from_keys(GPT2))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["LlamaForSequenceClassification"],
            "architectures='LlamaForSequenceClassification': its head is not understood",
        ),
        (["LlamaForTokenClassification"], "its head is not understood; give a ...ForCausalLM"),
        (["GPT2DoubleHeadsModel"], "its head is not understood"),
        (["Qwen2ForRewardModel"], "its head is not understood"),
        (["T5EncoderModel"], "its head is not understood"),
        (["LlamaForMaskedLM"], "model_type llama has no masked language model"),
        (["LlamaForCausalLM", "LlamaModel"], "some with a head, some without; give one"),
        ("LlamaForCausalLM", "must be a list of names of classes"),
        ([3], "must be a list of names of classes"),
    ],
)
def test_a_class_with_another_head_is_refused(names, problem):
    assert problem in refusal(LLAMA | {"architectures": names})


# --- files ---------------------------------------------------------------------------------------------------------


def file_refusal(path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_file_and_its_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    config = load_config(folder, {"num_hidden_layers": 5})
    assert config == load_config(str(folder / "config.json"), {"num_hidden_layers": 5})
    assert config.name == "my-model"
    assert len(config.decoder.layers) == 5


@pytest.mark.parametrize(
    ("content", "problem", "remedy"),
    [
        (b'{"model_type": "llama", "model_type": "gpt2"}', "key 'model_type': given twice", "keep one"),
        (b'{"a": {"b": 1, "b": 1}}', "key 'b': given twice", "keep one"),
        (b'{"rope_theta": NaN}', "NaN: not a number that JSON allows", "give a finite one"),
        (b'{"rope_theta": -Infinity}', "-Infinity: not a number that JSON allows", "give a finite one"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "too many digits", "no size"),
        (b"[1, 2]", "holds a list", "write {...}"),
        (b"null", "holds a NoneType", "write {...}"),
        (b"", "not JSON", "fix that place"),
        (b'{"a": 1,}', "not JSON", "line 1 column"),
        (b"\xff\xfe{\x00", "not UTF-8 at byte 0", "save it as UTF-8"),
        (b"[" * 100_000, "nested too deep", "few levels"),
        (b'{"a":' * 100_000, "nested too deep", "few levels"),
        (b'{"a": "' + b"x" * 10_000_000 + b'"}', f"larger than {LARGEST_FILE} bytes", "few thousand"),
    ],
)
def test_files_that_are_refused(tmp_path, content, problem, remedy):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    message = file_refusal(file)
    assert file.name in message
    assert problem in message
    assert remedy in message


def test_files_that_cannot_be_read(tmp_path):
    assert "No such file" in file_refusal(tmp_path / "nothing.json")
    assert "No such file" in file_refusal(tmp_path)  # a folder without a config.json
    assert "null" in file_refusal("a\0b")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs an endless file")
def test_an_endless_file_is_read_no_further_than_the_limit():
    assert "larger than" in file_refusal("/dev/zero")


# --- overrides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_key_value_heads=4", ("num_key_value_heads", 4)),
        ("rope_theta=1e6", ("rope_theta", 1e6)),
        ("hidden_act=relu", ("hidden_act", "relu")),
        ('hidden_act="relu"', ("hidden_act", "relu")),
        ("tie_word_embeddings=true", ("tie_word_embeddings", True)),
        ("sliding_window=null", ("sliding_window", None)),
        ('rope_scaling={"type": "linear", "factor": 2}', ("rope_scaling", {"type": "linear", "factor": 2})),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
    ],
)
def test_parse_override(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["", "=3", "hidden_size", "a=" + "[" * 100_000, 'a={"b":1,"b":2}', "a=NaN"])
def test_parse_override_refuses(text):
    with pytest.raises(ConfigError):
        parse_override(text)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_takes_the_canonical_keys(model_type):
    config = config_from_keys(
        FAMILIES[model_type],
        {
            "hidden_size": 48,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "intermediate_size": 200,
            "hidden_act": "relu",
            "attention_bias": True,
            "sliding_window": 7,
            "norm_placement": "post",
            "tie_word_embeddings": True,
            "max_position_embeddings": 99,
            "vocab_size": 50,
        },
    )
    assert (config.hidden_size, config.max_position_embeddings, config.vocab_size) == (48, 99, 50)
    assert config.tie_word_embeddings
    for stack in config.stacks.values():
        block = stack.layers[0]
        mlp = getattr(block.mlp, "expert", block.mlp)
        attn = block.self_attn
        assert len(stack.layers) == 5
        assert all(layer is block for layer in stack.layers)
        assert (attn.num_attention_heads, attn.num_key_value_heads, attn.head_dim) == (6, 3, 10)
        assert all((attn.q_bias, attn.k_bias, attn.v_bias, attn.o_bias))
        assert attn.sliding_window == (7 if attn.causal else None)
        assert (mlp.intermediate_size, mlp.hidden_act) == (200, "relu")
        assert (block.norm_placement, stack.final_norm) == ("post", None)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mistral", "marian"])
def test_mlp_bias(model_type):
    for value in (True, False):
        config = config_from_keys(FAMILIES[model_type], {"mlp_bias": value})
        assert all(stack.layers[0].mlp.bias is value for stack in config.stacks.values())


def test_an_override_that_would_do_nothing_is_refused():
    assert "num_kv_heads=None: not understood" in refusal(LLAMA, {"num_kv_heads": None})
    assert "n_embd=128: not understood by model_type llama" in refusal(LLAMA, {"n_embd": 128})
    assert "rope_theta=2.0: not understood by model_type gpt2" in refusal(GPT2, {"rope_theta": 2.0})
    assert refusal(GPT2, {"hidden_size": 32, "n_embd": 64}).startswith("hidden_size=32 with n_embd=64")


def test_a_family_name_overrides_a_canonical_one():
    canonical = {name: value for name, value in GPT2.items() if name != "n_embd"} | {"hidden_size": 64}
    assert config_from_keys(canonical, {"n_embd": 32}).hidden_size == 32


def test_one_stack_of_marian_is_overridden_alone():
    shared = {name: value for name, value in MARIAN.items() if "_layers" not in name} | {"num_hidden_layers": 4}
    config = config_from_keys(shared, {"decoder_layers": 1})
    assert (len(config.encoder.layers), len(config.decoder.layers)) == (4, 1)
    config = config_from_keys(MARIAN, {"num_hidden_layers": 6, "decoder_layers": 1})
    assert (len(config.encoder.layers), len(config.decoder.layers)) == (6, 1)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_overrides_keep_what_they_do_not_name(key):
    keys = LLAMA | {key: LLAMA3_ROPE | {"rope_theta": 5e5}}
    scaled = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)

    def rotary(overrides):
        return config_from_keys(keys, overrides).decoder.layers[0].self_attn.rotary

    assert (rotary(None).rope_theta, rotary(None).rope_scaling) == (5e5, scaled)
    assert (rotary({"rope_theta": 7.0}).rope_theta, rotary({"rope_theta": 7.0}).rope_scaling) == (7.0, scaled)
    assert (rotary({"rope_scaling": None}).rope_theta, rotary({"rope_scaling": None}).rope_scaling) == (5e5, None)
    assert rotary({"rope_parameters": {"rope_theta": 3.0}}).rope_theta == 3.0


# --- round trip and random configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_round_trip(model_type):
    config = config_from_keys(FAMILIES[model_type], {"num_hidden_layers": 7})
    assert config_from_keys(json.loads(json.dumps(config.keys))) == config
    assert FAMILIES[model_type].get("num_hidden_layers") != 7  # the caller's keys are left alone


@given(
    kv_heads=st.integers(1, 8),
    group=st.integers(1, 8),
    half_head=st.integers(1, 64),
    layers=st.integers(1, 200),
    width=st.integers(1, 10**5),
    vocab=st.integers(1, 10**6),
    derived=st.booleans(),
    tie=st.booleans(),
    bias=st.booleans(),
    theta=st.floats(1, 1e9),
    window=st.none() | st.integers(1, 10**6),
)
def test_valid_llama_keys_come_back_as_fields(
    kv_heads, group, half_head, layers, width, vocab, derived, tie, bias, theta, window
):
    heads, head_dim = kv_heads * group, 2 * half_head
    keys = {
        "model_type": "llama",
        "hidden_size": heads * head_dim if derived else width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": None if derived else head_dim,
        "num_hidden_layers": layers,
        "intermediate_size": width,
        "vocab_size": vocab,
        "tie_word_embeddings": tie,
        "attention_bias": bias,
        "rope_theta": theta,
        "sliding_window": window,
    }
    config = config_from_keys(keys)
    block = config.decoder.layers[0]
    attn = block.self_attn
    assert (config.hidden_size, config.vocab_size) == (keys["hidden_size"], vocab)
    assert (len(config.decoder.layers), block.mlp.intermediate_size) == (layers, width)
    assert (attn.num_attention_heads, attn.num_key_value_heads, attn.head_dim) == (heads, kv_heads, head_dim)
    assert (config.tie_word_embeddings, attn.q_bias, attn.o_bias) == (tie, bias, bias)
    assert (attn.rotary.rope_theta, attn.sliding_window) == (theta, window)
    assert config_from_keys(config.keys) == config


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({name for keys in FAMILIES.values() for name in keys} | {"rope_scaling", "layer_types", "head_dim"})


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(NAMES) | st.text(), json_values, max_size=3))
def test_any_value_anywhere_is_understood_or_refused(model_type, change):
    try:
        config = config_from_keys(FAMILIES[model_type] | change)
    except ConfigError as error:
        message = str(error)
    else:
        message = ""
        assert config_from_keys(config.keys) == config
    assert message.isprintable()


def test_a_padded_vocabulary_is_given_as_it_is_stored():
    mamba = {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 2, "pad_vocab_size_multiple": 8}
    assert config_from_keys(mamba | {"vocab_size": 50280}).vocab_size == 50280
    message = refusal(mamba | {"vocab_size": 50277})
    assert message.startswith("vocab_size=50277 with pad_vocab_size_multiple=8: tables would have 50280 rows")


def test_a_tie_that_no_default_settles_can_be_set():
    """Classes of the whole and of its text disagree on it, and a user may not want to edit the file."""
    text = LLAMA | {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}
    text.pop("tie_word_embeddings", None)
    keys = {"model_type": "mistral3", "text_config": text, "vision_config": {}}
    assert refusal(keys).startswith("tie_word_embeddings: missing, and mistral3 has no one default")
    tied, untied = (parameters(config_from_keys(keys, {"tie_word_embeddings": tie})) for tie in (True, False))
    assert untied - tied == text["vocab_size"] * text["hidden_size"]
