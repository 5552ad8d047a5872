"""The presets: each loads, says where its numbers come from and who counted the same, and costs no heavy import."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archcalc import presets, presets_table
from archcalc.cost import active_parameters, buffers, parameters
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.presets import names, preset, row, source

EXPECTED = {
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "worksheet-gpt",
    "llama2-7b", "llama3-8b", "llama3-70b", "llama3.1-405b", "smollm2-135m", "mixtral-8x7b",
    "transformer-base", "transformer-big", "tiny-decoder", "tiny-encoder-decoder",
}  # fmt: skip
REPORT = Path(__file__).resolve().parents[2] / "reports" / "presets.md"
CHECKED_BY = re.compile(r"transformers 5\.24\.0, (\w+) on the meta device")


def test_names_are_unique_and_complete():
    assert len(names()) == len(set(names())) >= 95
    assert set(names()) >= EXPECTED


@pytest.mark.parametrize("name", names())
def test_every_preset_loads_has_a_source_and_round_trips(name):
    config = preset(name)
    assert config.name == name
    assert len(source(name)) > 30
    again = config_from_keys(json.loads(json.dumps(config.keys)))  # keys of the language model: no tower is left out
    assert replace(again, left_out=config.left_out) == config
    assert set(again.left_out) <= set(config.left_out)
    assert not config.assumed  # every size is written down
    for stack in config.stacks.values():
        assert len({id(block) for block in stack.layers}) == len(set(stack.layers))


def differences(name: str) -> list[str]:
    """What our counts and those of the other side are not apart by, as the row says they are."""
    config, checked = preset(name), row(name)["checked"]
    found = []
    for what, ours in (("parameters", parameters(config)), ("buffers", buffers(config))):
        expected = checked.get(what, 0) + checked.get("differs", {}).get(what, 0)
        if ours != expected:
            found.append(f"{name}: {what} {ours} and {expected}")
    return found


@pytest.mark.parametrize("name", names())
def test_parameters_and_buffers_are_what_another_count_says(name):
    checked = row(name)["checked"]
    assert CHECKED_BY.fullmatch(checked["by"])
    if "differs" in checked:
        assert len(checked["differs"]["why"]) > 20 and checked["differs"].keys() & {"parameters", "buffers"}
    assert differences(name) == []


def test_a_difference_is_seen(monkeypatch):
    wrong = row("llama3-8b") | {"checked": row("llama3-8b")["checked"] | {"parameters": 8_030_261_247}}
    monkeypatch.setitem(differences.__globals__, "row", lambda name: wrong)
    assert differences("llama3-8b") == ["llama3-8b: parameters 8030261248 and 8030261247"]


@pytest.mark.parametrize("name", names())
def test_the_other_count_is_made_again(name):
    """A random model of no storage, of the class that the row names."""
    pytest.importorskip("transformers")
    from archcalc.against import built, counted

    checked = row(name)["checked"]
    architecture = CHECKED_BY.fullmatch(checked["by"]).group(1)
    found = counted(built({"pad_token_id": 0} | row(name)["config"], architecture))
    assert found["language_model"] == checked["parameters"]
    assert found["buffers"] == checked.get("buffers", 0)


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


def test_the_index_says_where_each_preset_is():
    """If it does not: python -m archcalc.presets_table."""
    assert presets.table(presets.INDEX) == presets_table.index()
    assert names() == [name for file in presets.files() for name in presets.table(file)]


def test_a_lookup_reads_the_index_and_one_family(monkeypatch):
    read, real = [], presets.read_json
    monkeypatch.setattr(presets, "read_json", lambda file: read.append(Path(file).name) or real(file))
    preset("llama3-8b")
    assert read == ["index.json", "llama.json"]


def test_the_committed_report_is_what_the_calculator_says_now():
    """If it is not: make reports."""
    assert REPORT.read_text(encoding="utf-8") == presets_table.presets_table()


def test_the_table_by_hand():
    rows = {one.name: one for one in presets_table.rows()}
    assert list(rows) == names()
    one = rows["mixtral-8x7b"]
    assert (one.total, one.active, one.cache, one.cross, one.state) == (
        46_702_792_704,
        12_879_925_248,
        2 * 32 * 8 * 128,
        0,
        0,
    )
    assert rows["t5-small"].cross == 2 * 6 * 512
    assert rows["mamba-130m"].state == 24 * 2 * 768 * (16 + 4)
    assert rows["deepseek-v3"].cache == 61 * (512 + 64)
    assert "here +16,449,536 parameters: the class ties the head" in rows["flan-t5-small"].checked
    assert active_parameters(preset("mixtral-8x7b")) == one.active


def test_writing_replaces_the_report_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(presets_table, "FOLDER", str(tmp_path))
    assert presets_table.main() == 0
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["presets.md"]
    assert (tmp_path / "reports" / "presets.md").read_text("utf-8") == REPORT.read_text("utf-8")
    assert json.loads((tmp_path / "index.json").read_text("utf-8")) == presets.table(presets.INDEX)
    assert "presets.md" in capsys.readouterr().out


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
