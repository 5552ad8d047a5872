"""Every config.json that aiconfigurator-core ships, as it is, against the same config built by transformers."""

import json
import time
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.cost import buffers, parameters
from archcalc.errors import ConfigError
from archcalc.hf import load_config
from archcalc.report import report

PACKAGE = pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core has the configs; pip install '.[dev]'")
FOLDER = Path(PACKAGE.__path__[0]) / "model_configs"
FILES = {file.name.removesuffix("_config.json"): file for file in sorted(FOLDER.glob("*_config.json"))}
MODELS = {name: file for name, file in FILES.items() if not name.endswith("_hf_quant")}  # those say how, not what
REFUSED = {"moonshotai--Kimi-K3": "attn_res_block_size=12"}  # attention over the outputs of earlier layers
# transformers 5.24 does not know these types: what they are is tested in families/.
UNKNOWN = {"minimax_m3", "mimo", "kimi_k2", "nemotron-nas", "deepseek_ref"}


def test_there_are_as_many_as_there_were():
    assert len(MODELS) >= 89
    assert set(REFUSED) <= set(MODELS)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in REFUSED])
def test_equal_to_transformers(name):
    keys = json.loads(MODELS[name].read_text())
    config = load_config(MODELS[name])
    assert report(config)["parameters"]["total"] == parameters(config)
    if keys["model_type"] in UNKNOWN:
        with pytest.raises(ConfigError, match="does not know it"):
            built(keys)
        return
    theirs = counted(built(keys))
    assert parameters(config) == theirs.pop("language_model")
    assert buffers(config) == theirs.pop("buffers")
    if theirs:  # a tower
        assert any("vision tower" in part for part in config.left_out)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_the_key_that_is_not_understood(name):
    with pytest.raises(ConfigError) as caught:
        load_config(MODELS[name])
    assert str(caught.value).startswith(REFUSED[name])


def test_the_whole_table_takes_seconds():
    """Reading and counting all of them, processor time: 89 configs in well under a second each."""
    started = time.process_time()
    for name, file in MODELS.items():
        if name not in REFUSED:
            parameters(load_config(file))
    assert time.process_time() - started < 20
