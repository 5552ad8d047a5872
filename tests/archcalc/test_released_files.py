"""Files of released models as they lie about: quantized, saved by other versions, with towers, with keys of tools."""

import json
from pathlib import Path

import pytest

from archcalc.against import built, counted
from archcalc.config import ModelConfig
from archcalc.cost import parameters
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.quantization.checkpoint import checkpoint_row
from archcalc.report import report

RELEASED = json.loads((Path(__file__).parent / "data" / "released_files.json").read_text())
# transformers 5.24 has no class for the first and refuses the type of one value in the second.
NOT_BUILT = {"minimax-text-01": "does not know it", "dbrx-instruct-mlx-4bit": "moe_normalize_expert_weights"}


def keys(name: str, **changes) -> dict:
    return RELEASED[name]["config"] | changes


def inside(name: str, **changes) -> dict:
    return keys(name, text_config=RELEASED[name]["config"]["text_config"] | changes)


def read(name: str) -> ModelConfig:
    return config_from_keys(keys(name))


@pytest.mark.parametrize("name", RELEASED)
def test_a_file_is_read_and_counted(name):
    config = read(name)
    assert report(config)["parameters"]["total"] == parameters(config) == RELEASED[name]["parameters"]
    assert parameters(config_from_keys(config.keys)) == parameters(config)


@pytest.mark.parametrize("name", RELEASED)
def test_as_transformers_counts_it(name):
    pytest.importorskip("transformers")
    if name in NOT_BUILT:
        with pytest.raises(Exception, match=NOT_BUILT[name]):
            built(keys(name))
        return
    found, config = counted(built(keys(name))), read(name)
    assert parameters(config) == found.pop("language_model")
    towers = {part.split()[1] for part in config.left_out if "tower" in part}
    assert towers == ({"audio" if "audio_config" in keys(name) else "vision"} if set(found) - {"buffers"} else set())


def test_the_ties_of_files_that_do_not_say_so_in_both_places():
    tied, apart = (config_from_keys(inside("llava-onevision-0.5b", tie_word_embeddings=t)) for t in (True, False))
    assert parameters(apart) - parameters(tied) == 152000 * 896  # the outer key says false in both


def test_sizes_that_a_text_config_leaves_to_its_class():
    config = read("llava-1.5-7b")
    assert config.assumed == {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008
    }  # fmt: skip
    alone = keys("llava-1.5-7b")["text_config"]
    with pytest.raises(ConfigError, match="missing, and never guessed"):
        config_from_keys(alone)


def test_files_whose_layout_is_not_described_still_count():
    for name, method in (("gpt-oss-20b-mlx-q8", "mlx"), ("lfm2.5-1.2b-autoround", "auto-round")):
        row = checkpoint_row(read(name))
        assert row["method"] == method
        assert row["not_derived"].endswith("the bytes of its file are not derived")
    repeated = {"group_size": 64, "bits": 4}
    found = config_from_keys(keys("qwen3-next-80b", quantization=repeated, quantization_config=repeated))
    assert found.quantization.method == "mlx"


QWEN, NEXT = "qwen2.5-vl-7b-saved-by-4.53", "qwen3-next-80b"
REFUSED = {
    "an outer size that is not the inner one": (keys(QWEN, hidden_size=4096), "hidden_size=4096"),
    "a head that no class ties": (keys("voxtral-mini-3b", tie_word_embeddings=True), "tie_word_embeddings=True"),
    "norms of keys": (inside("smolvlm-256m", qk_layer_norms=True), "qk_layer_norms=True"),
    "a resampler": (inside("smolvlm-256m", use_resampler=True), "use_resampler=True"),
    "bits that MLX has not": (keys(NEXT, quantization={"bits": 7, "group_size": 64}), "quantization.bits=7"),
    "a word for an object": (keys(NEXT, quantization="mxfp4"), "quantization='mxfp4'"),
    "a window that is on": (keys(NEXT, use_sliding_window=True), "use_sliding_window=True"),
    "shared experts": (keys("minimax-text-01", shared_intermediate_size=[96]), r"shared_intermediate_size=\[96\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_model_is_refused(name):
    changed, start = REFUSED[name]
    with pytest.raises(ConfigError, match="^" + start):
        config_from_keys(changed)
