"""The presets: each loads, says where its numbers come from, and costs no heavy import."""

import json
import subprocess
import sys

import pytest

from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.presets import names, preset, source

EXPECTED = {
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "worksheet-gpt",
    "llama2-7b", "llama3-8b", "llama3-70b", "llama3.1-405b", "smollm2-135m", "mixtral-8x7b",
    "transformer-base", "transformer-big", "tiny-decoder", "tiny-encoder-decoder",
}  # fmt: skip


def test_names_are_unique_and_complete():
    assert len(names()) == len(set(names()))
    assert set(names()) >= EXPECTED


@pytest.mark.parametrize("name", names())
def test_every_preset_loads_has_a_source_and_round_trips(name):
    config = preset(name)
    assert config.name == name
    assert len(source(name)) > 30
    assert config_from_keys(json.loads(json.dumps(config.keys))) == config
    for stack in config.stacks.values():
        assert len({id(block) for block in stack.layers}) == 1


def test_unknown_preset_names_the_nearest_and_takes_none():
    with pytest.raises(ConfigError, match=r"preset='llama3-8': .*did you mean llama3-8b\?"):
        preset("llama3-8")
    with pytest.raises(ConfigError, match="preset='LLAMA3-8B'"):
        source("LLAMA3-8B")


def test_overrides_reach_the_keys():
    config = preset("gpt2", {"num_key_value_heads": 4, "hidden_size": 1536})
    assert config.keys["hidden_size"] == 1536
    assert "n_embd" not in config.keys
    assert config.decoder.layers[0].self_attn.num_key_value_heads == 4
    with pytest.raises(ConfigError, match="num_kv_heads=4: not understood"):
        preset("gpt2", {"num_kv_heads": 4})


def test_llama31_keeps_its_rope_scaling():
    scaling = preset("llama3.1-405b").decoder.layers[0].self_attn.rotary.rope_scaling
    assert (scaling.rope_type, scaling.factor, scaling.original_max_position_embeddings) == ("llama3", 8.0, 8192)


def test_the_2017_model_is_post_norm_tied_and_sinusoidal():
    config = preset("transformer-base")
    block = config.decoder.layers[0]
    assert (block.norm_placement, config.decoder.final_norm, config.encoder.final_norm) == ("post", None, None)
    assert (config.position_embedding, config.tie_word_embeddings, config.share_embeddings) == (
        "sinusoidal",
        True,
        True,
    )
    assert (block.mlp.hidden_act, config.scale_embedding, config.hidden_size) == ("relu", True, 512)


def test_a_preset_imports_nothing_heavy_and_only_its_family():
    script = """
import sys
import archcalc.presets
archcalc.presets.preset("llama3-8b")
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"torch", "numpy", "sympy", "onnx", "difflib", "tomllib"}, sorted(loaded)
families = {name for name in sys.modules if name.startswith("archcalc.families.")}
assert families == {"archcalc.families." + name for name in ("llama", "rope", "shared")}, families
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
