"""A report beside the model that transformers builds: by part, with its towers, and the exit code that says whether."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from archcalc.against import ours, part_of
from archcalc.cli import main
from archcalc.cost import buffers, parameters
from archcalc.hf import config_from_keys
from archcalc.presets import names, preset

ROOT = Path(__file__).resolve().parents[2]
SMALL = json.loads((Path(__file__).parent / "data" / "small_flops.json").read_text())["models"]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16}
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "image_size": 28, "patch_size": 14,
}  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_our_parts_are_all_parameters(name):
    found = ours(preset(name))
    parts = [count for part, count in found.items() if part not in ("total", "buffers")]
    assert sum(parts) == found["total"] == parameters(preset(name))
    assert found["buffers"] == buffers(preset(name))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wpe.weight", "embedding"),
        ("model.encoder.conv1.bias", "embedding"),
        ("model.layers.0.self_attn.q_proj.bias", "mixer"),
        ("model.layers.3.self_attn.q_norm.weight", "norms"),
        ("transformer.h.0.attn.c_attn.weight", "mixer"),
        ("transformer.h.0.ln_1.weight", "norms"),
        ("transformer.ln_f.bias", "norms"),
        ("bert.encoder.layer.0.attention.output.dense.weight", "mixer"),
        ("bert.encoder.layer.0.output.dense.weight", "feed-forward"),
        ("bert.encoder.layer.0.output.LayerNorm.weight", "norms"),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "mixer"),
        ("encoder.block.0.layer.1.DenseReluDense.wi.weight", "feed-forward"),
        ("backbone.layers.0.mixer.in_proj.weight", "mixer"),
        ("backbone.layers.1.mixer.experts.up_proj", "feed-forward"),
        ("model.layers.0.mlp.gate.weight", "feed-forward"),
        ("model.layers.0.attn_hc.fn", "other"),
        ("lm_head.weight", "head"),
        ("language_model.lm_head.weight", "head"),
        ("cls.predictions.transform.dense.weight", "head"),
        ("cls.predictions.transform.LayerNorm.weight", "norms"),
        ("pooler.dense.weight", "head"),
    ],
)
def test_parts_of_their_names(name, part):
    assert part_of(name) == part


def test_their_model_beside_ours(capsys, tmp_path):
    """In one test: importing transformers takes seconds."""
    pytest.importorskip("transformers")

    def against(keys: dict, options: str = "") -> tuple[int, dict]:
        (tmp_path / "config.json").write_text(json.dumps(keys))
        command = f"report --config {tmp_path} --against transformers --format json {options}"
        code = main(command.split())
        return code, json.loads(capsys.readouterr().out)

    for name, row in SMALL.items():
        if row["config"]["model_type"] != "marian":  # a bias of the logits that the calculator does not know yet
            code, found = against(row["config"])
            assert code == 0 and found["agree"], name
            total = next(row for row in found["rows"] if row["part"] == "total")
            assert total["ours"] == total["theirs"] == parameters(config_from_keys(row["config"]))
    code, found = against(LLAMA, "--set num_key_value_heads=1")
    assert code == 0 and found["agree"]
    code, found = against({"model_type": "gemma3", "text_config": GEMMA3, "vision_config": VISION})
    assert code == 0 and found["towers"]["vision_tower"] > 10_000
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["report", "--config", str(tmp_path), "--against", "transformers"]) == 0
    assert "agrees" in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mimo"}))
    code = main(["report", "--config", str(tmp_path), "--against", "transformers"])
    assert code == 2
    assert "does not know it" in capsys.readouterr().err


def test_a_difference_is_exit_code_1(capsys, monkeypatch):
    pytest.importorskip("transformers")
    import archcalc.against as against

    whole = against.theirs
    monkeypatch.setattr(against, "theirs", lambda model: (whole(model)[0] | {"norms": 1}, {}))
    assert main(["report", "--preset", "gpt2", "--against", "transformers"]) == 1
    text = capsys.readouterr().out
    assert "gpt2: DIFFERS" in text
    assert "38,399" in text


def test_without_transformers_one_line_and_exit_code_2():
    script = """
import sys
sys.modules["transformers"] = sys.modules["torch"] = None
from archcalc.cli import main
sys.exit(main(["report", "--preset", "gpt2", "--against", "transformers"]))
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1
    assert "is not installed; pip install torch transformers" in found.stderr
