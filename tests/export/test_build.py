"""What `build` writes, and what `open_build` refuses to read."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

from archcalc.cost import parameters
from archcalc.errors import ArchcalcError, ConfigError
from archcalc.presets import preset
from export.build import MANIFEST, build, graph_name, open_build
from export.cli import main
from export.files import ExportError, sha256
from export.graph import WEIGHTS


def test_the_manifest_says_what_was_built(tiny):
    manifest = json.loads((tiny.folder / MANIFEST).read_text())
    assert manifest["config"] == tiny.config.keys
    assert manifest["predicted"]["parameters"] == parameters(tiny.config)
    assert manifest["predicted"]["weight_bytes"] == (tiny.folder / WEIGHTS).stat().st_size
    assert manifest["predicted"]["kv_bytes_per_sequence"] == {
        "16": 2 * 2 * 2 * 16 * 16 * 4,
        "32": 2 * 2 * 2 * 16 * 32 * 4,
    }
    assert manifest["operators"]["Attention"] == 2
    assert manifest["operators"]["TensorScatter"] == 4
    for name, file in manifest["files"].items():
        assert file["sha256"] == sha256(tiny.folder / name)
    assert open_build(tiny.folder).config == tiny.config


def test_a_block_is_one_function_called_once_a_layer(tiny):
    model = onnx.load(tiny.graph(32), load_external_data=False)
    assert [f.name for f in model.functions] == ["Stem", "Block0", "Head"]
    assert [n.op_type for n in model.graph.node] == ["Stem", "Block0", "Block0", "Head"]
    assert {i.version for i in model.opset_import if not i.domain} == {24}


TIED = {"tie_word_embeddings": True}


def test_a_tied_matrix_is_stored_once_as_the_checkpoint_has_it(tmp_path):
    config = preset("tiny-decoder", TIED)
    made = build(config, tmp_path / "tied", "fp32", (8,))
    model = onnx.load(made.graph(8), load_external_data=False)
    stored = {t.name: list(t.dims) for t in model.graph.initializer}
    assert stored["embed_tokens.weight"] == [config.vocab_size, config.hidden_size]
    assert "lm_head.weight" not in stored
    head = next(f for f in model.functions if f.name == "Head")
    assert [n.op_type for n in head.node if "embed_tokens.weight" in n.input] == ["Transpose"]
    assert (made.folder / WEIGHTS).stat().st_size == 4 * parameters(config)


def test_a_session_holds_a_tied_matrix_once(tmp_path):
    """Transposed ahead of time it would be there twice."""
    config = preset("tiny-decoder", TIED | {"vocab_size": 2**18})
    made = build(config, tmp_path / "tied", "fp32", (8,))
    size = (made.folder / WEIGHTS).stat().st_size
    assert 4 * config.vocab_size * config.hidden_size > 0.99 * size
    script = f"""
        from pathlib import Path
        import onnxruntime
        from export.build import open_build
        from export.runtimes.onnxruntime_ import OnnxRuntimeEngine

        def anonymous():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

        made = open_build({str(tmp_path / "tied")!r})
        before = anonymous()
        engine = OnnxRuntimeEngine(made, 8)
        engine.prepare(1, 1, 3)()
        print(anonymous() - before)
    """
    grown = int(subprocess.check_output([sys.executable, "-c", textwrap.dedent(script)]))
    assert 0.9 * size < grown < 1.1 * size


def test_two_kinds_of_block_are_two_functions(tmp_path):
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = preset("tiny-decoder", {"num_hidden_layers": 3, "sliding_window": 4, "layer_types": types})
    made = build(config, tmp_path / "mixed", "fp32", (8,))
    called = [n.op_type for n in onnx.load(made.graph(8), load_external_data=False).graph.node]
    assert called == ["Stem", "Block0", "Block1", "Block0", "Head"]


@pytest.mark.parametrize("name", [WEIGHTS, graph_name(32)])
def test_other_bytes_of_the_same_size_are_refused(copied, name):
    path = copied.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ExportError, match=rf"{name}: not the file that was built.*build it again"):
        open_build(copied.folder)


@pytest.mark.parametrize("name", [WEIGHTS, graph_name(32)])
def test_a_truncated_a_linked_and_a_missing_file_are_refused(copied, name):
    path = copied.folder / name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ExportError, match=rf"{name}: not the file that was built"):
        open_build(copied.folder)
    path.rename(copied.folder.parent / "elsewhere")
    with pytest.raises(ExportError, match=rf"{name}: missing; build it again"):
        open_build(copied.folder)
    path.symlink_to(copied.folder.parent / "elsewhere")
    with pytest.raises(ExportError, match=rf"{name}: missing; build it again"):
        open_build(copied.folder)


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", "a/b.safetensors", "", "."])
def test_a_manifest_that_lists_a_file_elsewhere_is_refused(copied, name):
    path = copied.folder / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["files"][name] = manifest["files"][WEIGHTS]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"(not the name of a file beside it|missing); build it again"):
        open_build(copied.folder)


def _place(model, where: str) -> onnx.TensorProto:
    """A tensor of the model to damage: a weight, or a constant deep inside a function."""
    if where == "initializer":
        return model.graph.initializer[0]
    if where == "constant":
        return next(n for f in model.functions for n in f.node if n.op_type == "Constant").attribute[0].t
    branch = helper.make_graph([], "branch", [], [], [helper.make_tensor("hidden", TensorProto.FLOAT, [1], [0.0])])
    node = helper.make_node("If", ["x.0"], [], then_branch=branch, else_branch=branch)
    model.functions[1].node.append(node)
    return model.functions[1].node[-1].attribute[0].g.initializer[0]


def _listed(opened, path) -> None:
    """Let the manifest say that a changed file is the one that was built."""
    manifest = json.loads((opened.folder / MANIFEST).read_text())
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (opened.folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_file_that_is_no_graph_is_refused(copied):
    path = copied.graph(32)
    path.write_bytes(b"\xff" * 99)
    _listed(copied, path)
    with pytest.raises(ExportError, match=r"model-32\.onnx: no ONNX graph, .*; build it again"):
        open_build(copied.folder)


@pytest.mark.parametrize("where", ["initializer", "constant", "subgraph"])
@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "other.bin"])
def test_a_graph_that_names_another_data_file_is_refused(copied, location, where):
    path = copied.graph(32)
    model = onnx.load(path, load_external_data=False)
    tensor = _place(model, where)
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=WEIGHTS)  # which of the two is read, is the runtime's affair
    tensor.external_data.add(key="location", value=location)
    tensor.data_location = TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    _listed(copied, path)
    with pytest.raises(ExportError, match=r"only weights.bin is read"):
        open_build(copied.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format=99"),
        ({"files": {}}, "incomplete"),
        ({"capacities": [2**40]}, "capacity_1099511627776="),
        ({"capacities": ["../x"]}, r"capacity_\.\./x="),
        ({"capacities": []}, "capacities=0"),
        ({"weights": None}, "incomplete"),
        ({"weights": {"kind": "pickle"}}, "weights.kind='pickle'"),
        ({"files": {graph_name(16): {"bytes": "1", "sha256": 1}}}, "incomplete"),
        ({"files": None}, "incomplete"),
        ({"config": None}, "object of config.json keys"),
        ({"precision": "fp7"}, "precision='fp7'"),
    ],
)
def test_a_damaged_manifest_is_refused(copied, change, message):
    path = copied.folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ArchcalcError, match=message):
        open_build(copied.folder)


def test_what_cannot_be_exported_is_refused_by_the_name_of_the_part(tmp_path):
    config = preset("tiny-decoder")
    with pytest.raises(ExportError, match="a head of labels cannot be exported"):
        build(replace(config, head=replace(config.head, kind="labels", labels=2)), tmp_path / "a")
    with pytest.raises(ExportError, match="max_position_embeddings=256"):
        build(preset("tiny-decoder"), tmp_path / "c", "fp32", (257,))
    with pytest.raises(ConfigError, match="capacity=0"):
        build(preset("tiny-decoder"), tmp_path / "d", "fp32", (0,))
    assert list(tmp_path.iterdir()) == []


def test_another_folder_is_never_replaced(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match=r"holds no manifest\.json"):
        build(preset("tiny-decoder"), mine, "fp32", (8,))
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_damaged_manifest_is_one_line_on_the_command_line(copied, capsys):
    for text in ("", "[]", '{"format": 2', "\xff" * 9):
        (copied.folder / MANIFEST).write_text(text, encoding="latin-1")
        assert main(["verify", "--build", str(copied.folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
