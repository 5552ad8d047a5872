"""`export verify` as a user types it: what is printed, the JSON report, and the exit code."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from export.build import MANIFEST, open_build
from export.cli import main
from export.graph import WEIGHTS
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.verify import verify
from export.verify_report import report, write_report


@pytest.fixture
def folder(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "made")
    return tmp_path / "made"


def _read(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_the_report_of_a_right_build(folder, capsys):
    assert main(["verify", "--build", f"{folder}/"]) == 0
    told = capsys.readouterr().out
    found = _read(folder.with_name("made-verify.json"))
    assert f"Report: {folder.with_name('made-verify.json')}" in told
    assert open_build(folder)  # nothing was put into it
    manifest = json.loads((folder / MANIFEST).read_text())
    assert found["passed"] is True
    assert found["stopped"] is None
    assert found["build"] == {key: manifest[key] for key in ("name", "precision", "capacities", "weights", "files")}
    assert found["made"]["versions"]["onnxruntime"]
    assert [graph["capacity"] for graph in found["graphs"]] == [16, 32]
    for graph in found["graphs"]:
        assert (graph["passed"], graph["problems"], graph["first_diverging_layer"]) == (True, [], None)
        assert graph["tolerance"]["limit"] == 1e-4
        assert graph["tolerance"]["reason"] in told
        assert 0 < graph["largest_activation"] < graph["largest_allowed"]
        assert graph["largest_activation_at"] in told
        assert len(graph["cases"]) == 6
        for case in graph["cases"]:
            assert case["passed"] and 0 < case["logits_error"] < 1e-5 and 0 < case["cache_error"] < 1e-5
            assert case["tokens"] == case["tokens_agreed"] > 0
        assert f"cache of {graph['capacity']} tokens: logits differ by" in told
    assert [case["padding"] for case in found["graphs"][0]["cases"]].count("in front") == 2


def test_the_report_of_a_wrong_build(folder, tmp_path, capsys):
    weights = np.memmap(folder / WEIGHTS, np.float32, "r+")
    weights[-5] = np.nan  # in the head
    weights.flush()
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][WEIGHTS]["sha256"] = _sha256(folder / WEIGHTS)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    path = tmp_path / "new" / "report.json"
    assert main(["verify", "--build", str(folder), "--json", str(path)]) == 1
    told = capsys.readouterr().out
    assert "DIFFERS: logits differ by inf" in told
    assert "DIFFERS: first diverging layer: head (inf of 0.0001); layers.1 still agrees" in told
    found = _read(path)
    assert found["passed"] is False
    graph = found["graphs"][1]
    assert graph["cases"][0]["logits_error"] == "inf"
    assert graph["cases"][0]["passed"] is False
    assert graph["first_diverging_layer"]["first"] == "head"
    assert graph["first_diverging_layer"]["errors"]["head"] == "inf"
    assert graph["first_diverging_layer"]["errors"]["layers.1"] < 1e-5


def _sha256(path):
    from export.files import sha256

    return sha256(path)


def test_a_tolerance_of_ones_own_is_printed_as_such(folder, tmp_path, capsys):
    argv = ["verify", "--build", str(folder), "--json", str(tmp_path / "r.json")]
    assert main([*argv, "--atol", "1e-9", "--rtol", "1e-9"]) == 1
    told = capsys.readouterr().out
    assert "tolerance |got - want| <= 1e-09 + 1e-09·|want| (atol, rtol), in place of fp32's 0.0001" in told
    assert "as shares of the tolerance" in told
    assert (
        _read(tmp_path / "r.json")["graphs"][0]["tolerance"]["rule"]
        == "|got - want| <= 1e-09 + 1e-09·|want| (atol, rtol)"
    )
    assert main([*argv, "--atol", "1e-3"]) == 0
    assert "<= 0.001 + 0·|want|" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much"])
def test_a_tolerance_is_a_number_from_0(value, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["verify", "--atol", value])
    assert stopped.value.code == 2
    assert "give a number from 0" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("export.verify.verify", None)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "report.json", tmp_path):
        assert main(["verify", "--build", str(folder), "--json", str(path)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"export: json={path}: cannot be written, ")
        assert told.count("\n") == 1


def test_what_stops_the_comparison_is_in_the_report(folder, capsys):
    """Weights that are not at hand: exit code 2, and no older report is left to be taken for this one."""
    assert main(["verify", "--build", str(folder)]) == 0
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["weights"] = {"kind": "file", "name": "gone.safetensors", "sha256": "0" * 64}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert main(["verify", "--build", str(folder)]) == 2
    told = capsys.readouterr().err
    found = _read(folder.with_name("made-verify.json"))
    assert found["passed"] is False
    assert found["graphs"] == []
    assert told == f"export: {' '.join(found['stopped'].split())}\n"


def test_a_run_that_dies_leaves_a_report_that_says_so(folder, monkeypatch):
    def dies(*args, **named):
        raise MemoryError

    monkeypatch.setattr("export.verify.verify", dies)
    with pytest.raises(MemoryError):
        main(["verify", "--build", str(folder)])
    found = _read(folder.with_name("made-verify.json"))
    assert (found["passed"], found["stopped"]) == (False, "not finished")


def test_a_stopped_case_is_in_the_report(tiny, engine, tiny_model, tmp_path):
    class Broken:
        def __getattr__(self, name):
            return getattr(engine, name)

        def run(self, *args):
            raise RuntimeError("no memory")

    write_report(tmp_path / "r.json", report(tiny, "onnxruntime", [verify(tiny, Broken(), tiny_model, steps=1)]))
    found = _read(tmp_path / "r.json")
    assert found["passed"] is False
    assert {case["stopped"] for case in found["graphs"][0]["cases"]} == {"RuntimeError: no memory"}


def test_the_engine_and_the_report_name_the_same_graph(tiny, tiny_model):
    verdicts = [verify(tiny, OnnxRuntimeEngine(tiny, capacity), tiny_model, steps=1) for capacity in tiny.capacities]
    found = report(tiny, "onnxruntime", verdicts)
    assert [graph["capacity"] for graph in found["graphs"]] == list(tiny.capacities)
    assert [graph["cases"][4]["prompt_tokens"] for graph in found["graphs"]] == [[16], [32]]
