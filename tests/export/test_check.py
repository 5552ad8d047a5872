"""The whole of `export check`, with a clock that obeys the law (or does not)."""

from __future__ import annotations

import dataclasses
import re

import pytest

from archcalc.hf import config_from_keys
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from export import calibrate
from export.cli import main

MACHINE = Machine(2e10, 1.5e11, 2.0, 1.5e-10, 4e-10, 1e-6)


@pytest.fixture
def clock(monkeypatch, tiny):
    """Make every pass take what MACHINE would, times a factor that a test may set by the build's name.

    Nothing of the probes is run, so nothing of them is built.
    """
    factors: dict[str, float] = {}

    def build_probes(out, precision, target):
        configs = {name: config_from_keys(keys, name=name) for name, keys in calibrate.PROBES.items()}
        return {name: dataclasses.replace(tiny, config=config) for name, config in configs.items()}

    def prepare(build, engine_of, points):
        seconds = [predict(p.run(build), MACHINE, precision(build.precision.name)) for p in points]
        return [s * factors.get(build.config.name, 1.0) for s in seconds]

    monkeypatch.setattr("export.compare.build_probes", build_probes)
    monkeypatch.setattr("export.compare.prepare", prepare)
    monkeypatch.setattr("export.compare.measure", lambda passes: [[(0.99 * s, s, 1.01 * s)] for s in passes])
    return factors


def _check(tmp_path, *more) -> tuple[int, str]:
    report = tmp_path / "report.md"
    argv = ["check", "--preset", "tiny-decoder", "--out", str(tmp_path / "out"), "--report", str(report), *more]
    return main(argv), report.read_text() if report.exists() else ""


@pytest.mark.parametrize(
    ("preset_name", "counts", "points", "why"),
    [
        ("tiny-encoder-decoder", 7, 22, "no tokenizer is read beside an encoder"),
        ("bert-base", 3, 10, "an encoder writes none"),
    ],
)
def test_a_model_with_an_encoder_is_checked(preset_name, counts, points, why, small_bert, tmp_path, clock, capsys):
    sizes = small_bert if preset_name == "bert-base" else {}
    given = [option for key, value in sizes.items() for option in ("--set", f"{key}={value}")]
    code, report = _check(tmp_path, *given, "--preset", preset_name)
    told = capsys.readouterr().out
    assert code == 0, told
    assert told.count("equal") == counts
    assert re.search(rf"greedy text +skipped +{why}", told)
    assert len(re.findall(r"^(?:encode|prefill|decode) B=", told, re.M)) == points
    assert ("cache against PyTorch" in told) == ("decode B=" in told) == (preset_name != "bert-base")
    clock[preset_name] = 1.3
    code, report = _check(tmp_path, *given, "--preset", preset_name)
    assert code == 1
    assert "latency: predicted and measured differ by more than the bars" in report


def test_a_right_model_on_a_lawful_machine_agrees(tmp_path, clock, capsys):
    code, report = _check(tmp_path)
    told = capsys.readouterr().out
    assert code == 0, told
    assert "Everything agrees." in told
    assert told.count("equal") == 5
    assert "skipped" in told  # random weights have no tokenizer
    assert len(re.findall(r"^(?:prefill|decode) B=", told, re.M)) == 12
    assert f"Report: {tmp_path / 'report.md'}" in told
    for recorded in ("Command `python -m export check --preset tiny-decoder", "commit ", "onnxruntime ", "| bandwidth"):
        assert recorded in report


def test_a_machine_that_breaks_the_law_disagrees(tmp_path, clock, capsys):
    clock["tiny-decoder"] = 1.3
    code, report = _check(tmp_path)
    assert code == 1
    assert "latency: predicted and measured differ by more than the bars" in capsys.readouterr().out
    assert "Disagreement" in report


def test_a_wrong_count_disagrees(tmp_path, clock, capsys, monkeypatch):
    monkeypatch.setattr("export.compare.parameters", lambda config: 125_247)
    code, report = _check(tmp_path)
    assert code == 1
    assert "parameters: derived 125,247, found 125,248" in report


def test_a_wrong_graph_disagrees(tmp_path, clock, capsys, monkeypatch):
    import numpy as np

    from export.files import sha256
    from export.weights_file import write_weights

    def wrong(path, *rest):
        write_weights(path, *rest)
        weights = np.memmap(path, np.float32, "r+")
        weights[1000:2000] += 0.01
        weights.flush()
        return sha256(path)

    monkeypatch.setattr("export.build.write_weights", wrong)
    code, report = _check(tmp_path)
    assert code == 1
    assert "verify: logits differ by" in report


def test_weights_with_another_tokenizer_are_checked_without_text(engine, tiny_model, monkeypatch, tmp_path):
    from export.check import _text
    from models.gguf_file import WeightsError

    def refuse(path):
        raise WeightsError("another kind")

    monkeypatch.setattr("models.tokenizer.Tokenizer.from_gguf", refuse)
    (tmp_path / "x.gguf").touch()
    assert _text(tiny_model, engine, {"kind": "file", "name": "x.gguf"}, str(tmp_path / "x.gguf")) is None
