"""Hostile input: whatever a config.json holds, it is a config or one readable line, soon and in little memory."""

import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archcalc.errors import ConfigError
from archcalc.families import MODULES, family
from archcalc.hf import LARGEST_FILE, config_from_keys
from archcalc.report import report

# A valid config of every model_type; one that is new here needs one there.
VALID = json.loads((Path(__file__).parent / "data" / "small_configs.json").read_text())["configs"]
SECONDS, BYTES, CHARACTERS = 1.0, 200e6, 400  # of processor time: others may use the machine as well


def nested(depth: int, kind: type):
    value = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


BAD = [
    "x", "\x1b[31m\n" * 1000, -1, 0, 2**31, 10**400, -0.5, math.inf, math.nan, None, ["full_attention"] * 3, {"a": {}},
    nested(1000, list), nested(1000, dict),
]  # fmt: skip
# Keys that many families read and a small config may lack.
COMMON = (
    "rope_scaling", "rope_parameters", "layer_types", "quantization_config", "architectures", "sliding_window",
    "head_dim", "num_key_value_heads", "intermediate_size", "tie_word_embeddings", "model_type", "num_local_experts",
)  # fmt: skip


def names_of(model_type: str, keys: dict) -> set[str]:
    """What a message may name: a key of the config or inside of it, or another name of one."""
    inner = {n for value in keys.values() if type(value) is dict for n in value}
    aliases = getattr(family(model_type), "ALIASES", {})
    return set(keys) | inner | set(COMMON) | set(aliases) | {n for names in aliases.values() for n in names}


def line_of(error: Exception, names: set[str]) -> str:
    """The message of a refusal: one readable line that names a key."""
    message = str(error)
    assert message.isprintable()
    assert len(message) <= CHARACTERS
    words = {part for word in re.findall(r"[A-Za-z_][\w.]*", message) for part in (word, *word.split("."))}
    assert words & names or "missing" in message, message
    return message


def outcome(keys: dict, names: set[str], known=None) -> str:
    """`refused`, or `understood`: then it is the `known` config, or its report works or is refused in one line too."""
    try:
        config = config_from_keys(keys)
        if config != known:
            report(config)
    except ConfigError as error:
        line_of(error, names)
        return "refused"
    return "understood"


def test_every_family_has_a_valid_config():
    assert not set(MODULES) - set(VALID), "give tests/archcalc/data/small_configs.json a config of each"
    for model_type, keys in VALID.items():
        assert outcome(keys, set()) == "understood", model_type


@pytest.mark.parametrize("model_type", sorted(VALID))
def test_any_value_of_any_key(model_type):
    valid = VALID[model_type]
    names, known, refused = names_of(model_type, valid), config_from_keys(valid), 0
    for key in dict.fromkeys((*valid, *COMMON)):
        for value in BAD:
            begun = time.process_time()
            refused += outcome(valid | {key: value}, names | {key}, known) == "refused"
            assert time.process_time() - begun < SECONDS, (key, value)
    assert refused > 4 * len(valid)  # most of it is nonsense


@pytest.mark.parametrize("model_type", sorted(VALID))
def test_any_value_inside_an_object_or_a_list(model_type):
    valid = VALID[model_type]
    names, known = names_of(model_type, valid), config_from_keys(valid)
    for key, inner in valid.items():
        for place in inner if type(inner) is dict else range(min(1, len(inner))) if type(inner) is list else ():
            for value in BAD:
                changed = inner.copy()
                changed[place] = value
                outcome(valid | {key: changed}, names, known)


@pytest.mark.parametrize("model_type", sorted(VALID))
def test_each_missing_key_and_an_unknown_one(model_type):
    valid = VALID[model_type]
    names, known = names_of(model_type, valid), config_from_keys(valid)
    for key in valid:
        outcome({name: value for name, value in valid.items() if name != key}, names, known)
    for key in ("num_hidden_layer", "rope", "x" * 10_000, "new_gate_size"):
        with pytest.raises(ConfigError) as caught:
            config_from_keys(valid | {key: 3})
        message = line_of(caught.value, names | {key[:60], "key"} | set(re.findall("x+", str(caught.value))))
        assert "not understood" in message
        assert key[:40] in message


QUANTIZED = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}},
        "ignore": ["lm_head", "re:.*self_attn.*"],
    },
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_any_value_inside_a_quantization_config(name):
    from archcalc.quantization.checkpoint import checkpoint_row

    valid, names = VALID["llama"], names_of("llama", VALID["llama"]) | set(QUANTIZED[name])
    for key in (*QUANTIZED[name], "modules_to_not_convert", "ignore", "config_groups", "quantized_layers", "zz"):
        for value in [*BAD, ["*" * 100], ["re:" + "(a+)+$"], ["re:" + ".*" * 60 + "x"], ["layers.*"] * 5000]:
            keys = valid | {"quantization_config": QUANTIZED[name] | {key: value}}
            begun = time.process_time()
            if outcome(keys, names) == "understood":
                row = checkpoint_row(config_from_keys(keys))
                assert row is None or str(row.get("not_derived", "")).isprintable()
            assert time.process_time() - begun < SECONDS, (key, value)


# --- the command ---------------------------------------------------------------------------------------------------


# Runs a command and says what it took. A process of its own: a child starts with its parent's peak of memory.
MEASURE = """
import json, resource, subprocess, sys
child = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([child.returncode, child.stderr.decode(), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def command(folder: Path, text: bytes) -> tuple[int, str, float, int]:
    """(exit code, stderr, seconds of processor time, bytes at most) of `archcalc report` of a file."""
    file = folder / "config.json"
    file.write_bytes(text)
    asked = [sys.executable, "-m", "archcalc", "report", "--config", str(file)]
    return json.loads(subprocess.check_output([sys.executable, "-S", "-c", MEASURE, *asked]))


def llama(**keys) -> bytes:
    return json.dumps(VALID["llama"] | keys).encode()


def fill(unit: bytes) -> bytes:
    """An array of as many units as a file may hold, under a key."""
    head = b'{"model_type": "llama", "layer_types": ['
    return head + b",".join([unit] * ((LARGEST_FILE - len(head) - 3) // (len(unit) + 1))) + b"]}"


FILES = {
    "10 MB of text": lambda: b'{"a": "' + b"x" * 10_000_000 + b'"}',
    "10 MB of keys": lambda: b'{"model_type": "llama"' + b"".join(b', "k%d": 1' % i for i in range(700_000)) + b"}",
    "a million layer types": lambda: llama(layer_types=["full_attention"] * 1_000_000),
    "layer types, as many as fit": lambda: fill(b'"sliding_attention"'),
    "empty lists": lambda: fill(b"[]"),
    "small objects": lambda: fill(b'{"":0}'),
    "numbers": lambda: fill(b"0"),
    "nested lists": lambda: b"[" * 3_000_000,
    "nested objects": lambda: b'{"text_config":' * 200_000,
    "deep in rope_scaling": lambda: llama(rope_scaling=nested(900, dict)),
    "deep in quantization_config": lambda: llama(quantization_config=nested(900, dict)),
    "deep in text_config": lambda: json.dumps({"model_type": "gemma3", "text_config": nested(900, dict)}).encode(),
    "huge depth": lambda: llama(num_hidden_layers=2**31 - 1),
    "the last of many keys twice": lambda: (
        b'{"b": 1' + b"".join(b', "%d": 1' % i for i in range(250_000)) + b', "b": 2}'
    ),
    "a key twice": lambda: b'{"model_type": "llama", "model_type": "llama"}',
    "NaN": lambda: llama(rms_norm_eps=math.nan),
    "infinity": lambda: llama(rms_norm_eps=0).replace(b'"rms_norm_eps": 0', b'"rms_norm_eps": 1e400'),
    "many digits": lambda: b'{"vocab_size": ' + b"9" * 1_000_000 + b"}",
    "an unknown type": lambda: llama(model_type="z" * 100_000),
    "an unknown key": lambda: llama(new_gate_size=5),
    "a contradiction": lambda: llama(num_attention_heads=7),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a peak of memory has another unit")
@pytest.mark.parametrize("name", FILES)
def test_the_command_answers_in_one_line_soon_and_in_little_memory(tmp_path, name):
    code, said, seconds, memory = command(tmp_path, FILES[name]())
    assert code == 2
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert len(said) <= CHARACTERS + len(str(tmp_path)) + 50
    assert ";" in said  # what to do
    assert seconds < SECONDS
    assert memory < BYTES
