"""A build over the checkpoint's own files: nothing is copied, and both runtimes read it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from checkpoint_files import KEYS, LLAMA, lively, renamed, write_gguf, write_safetensors
from safetensors.torch import save_file

from archcalc.config import ModelConfig
from archcalc.hf import config_from_keys
from export.build import Build, build, open_build
from export.cli import main
from export.files import ExportError, sha256
from export.graph import Stored
from export.linked_weights import link, linked_places
from export.precision import export_precision
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from export.source import file_source, model_source
from models import load, safetensors_file
from models.names import gguf_tables, llama_like
from models.weights import checkpoint


def unaligned(path: Path) -> Path:
    """The same file with a header of odd length, so that no tensor lies at a whole number of them."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + length]), separators=(",", ":")).encode()
    header += b" " * (1 + len(header) % 2)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    assert all(at % 2 for at in safetensors_file.offsets(path).values())
    return path


def shards(folder: Path, dtype=torch.float32) -> Path:
    tensors = list(renamed(lively().to(dtype), llama_like.LLAMA).items())
    where = {}
    for index in range(2):
        part = dict(tensors[index::2])
        save_file(part, folder / f"m-{index}.safetensors")
        where |= dict.fromkeys(part, f"m-{index}.safetensors")
    unaligned(folder / "m-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(KEYS))
    return folder


def linked(path: Path, out: Path, precision: str = "fp32", config: ModelConfig = LLAMA) -> Build:
    return build(config, out, precision, (16,), source=file_source(checkpoint(path, config)), link_weights=True)


def logits(made: Build) -> np.ndarray:
    engine = OnnxRuntimeEngine(made, 16)
    ids, positions = np.arange(10).reshape(2, 5), np.tile(np.arange(5), (2, 1))
    return engine.run(ids, positions, np.zeros(2, np.int64), np.full((2, 1), 4), engine.new_cache(2))


def test_onnx_runtime_computes_the_same_from_linked_shards(tmp_path):
    path = shards(tmp_path)
    made = linked(path, tmp_path / "linked")
    copied = build(LLAMA, tmp_path / "copied", "fp32", (16,), load(path), {"kind": "random", "seed": 0})
    assert np.array_equal(logits(open_build(made.folder)), logits(copied))
    assert sorted(p.name for p in made.folder.iterdir()) == [
        "m-0.safetensors", "m-1.safetensors", "manifest.json", "model-16.onnx",
    ]  # fmt: skip
    for name in ("m-0.safetensors", "m-1.safetensors"):
        assert (made.folder / name).stat().st_ino == (tmp_path / name).stat().st_ino
        assert made.data[name] == made.manifest["weights"]["sha256"][name] == sha256(tmp_path / name)
    weights = tmp_path / "m-1.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ExportError, match=r"m-1\.safetensors: not the file that was built"):
        open_build(made.folder)


def test_tensorrt_takes_linked_bf16_weights(tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    from export.engine_from_onnx import build_engine

    made = linked(shards(tmp_path, torch.bfloat16), tmp_path / "linked", "bf16")
    info = build_engine(made, 16, compute_capability="sm_89")
    assert info.path.stat().st_size > 0
    assert info.facts["weights_sha256"] == " ".join(made.data.values())


def places(config: ModelConfig, path: Path, precision: str) -> dict[str, Stored]:
    kind = export_precision(precision)
    source = file_source(checkpoint(path, config))
    return {n: Stored(n, {n: 0}, kind.onnx, tuple(t.shape), 0) for n, t in source.weights.items()}


def test_every_part_lies_where_its_place_says(tmp_path):
    """Fused rows too: each of the three parts of a tensor is a piece of it."""
    config = config_from_keys(KEYS | {"model_type": "phi3", "pad_token_id": 0})
    model = lively(LLAMA)
    tensors = {f"model.{name}": tensor for name, tensor in renamed(model, llama_like.LLAMA).items()}
    tensors["lm_head.weight"] = tensors.pop("model.lm_head.weight")
    for i in range(2):
        for fused, names in (("self_attn.qkv", ("q", "k", "v")), ("mlp.gate_up", ("gate", "up"))):
            owner = fused.split(".")[0]
            parts = [tensors.pop(f"model.layers.{i}.{owner}.{one}_proj.weight") for one in names]
            tensors[f"model.layers.{i}.{fused}_proj.weight"] = torch.cat(parts)
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    unaligned(path)
    found, files = linked_places(places(config, path, "fp32"), checkpoint(path, config))
    assert files == [path]
    data = path.read_bytes()
    for name, tensor in model_source(model, {}).weights.items():
        place = found[name]
        assert place.file == "m.safetensors"
        assert data[place.offset : place.offset + place.nbytes] == tensor.numpy().tobytes(), name


def refused(path: Path, precision: str = "fp32", config: ModelConfig = LLAMA) -> str:
    with pytest.raises(ExportError) as caught:
        linked_places(places(config, path, precision), checkpoint(path, config))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_build_has_otherwise_is_named(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively())
    message = "--link-weights: lm_head.weight is float32 in the file and float16 in the build; give"
    assert message in refused(path, "fp16")
    gguf = write_gguf(tmp_path / "m.gguf", renamed(lively(), gguf_tables.TABLES["llama"]))
    assert "--link-weights: needs weights in safetensors files" in refused(gguf)


def test_rows_in_another_order_are_named(tmp_path):
    """Llama's rotary pairs are halves of a head; in Cohere's files they are neighbours."""
    path = write_safetensors(tmp_path / "m.safetensors", lively())
    found = replace(checkpoint(path, LLAMA), table=llama_like.COHERE)
    with pytest.raises(ExportError, match=r"self_attn\.[qk]_proj\.weight has its rows in another order"):
        linked_places(places(LLAMA, path, "fp32"), found)


def test_another_filesystem_is_told_with_the_way_out(tmp_path, monkeypatch):
    path = write_safetensors(tmp_path / "m.safetensors", lively())

    def other_device(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("os.link", other_device)
    with pytest.raises(ExportError, match=r"link; give an --out on the same filesystem, or leave out --link-weights"):
        link([path], tmp_path)


def test_random_weights_cannot_be_linked(tmp_path, capsys):
    arguments = ["build", "--preset", "tiny-decoder", "--link-weights", "--capacity", "8"]
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 2
    assert "--link-weights: needs weights in safetensors files" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_graph_names_the_files_beside_it_alone(tmp_path):
    made = linked(write_safetensors(tmp_path / "m.safetensors", lively()), tmp_path / "b")
    graph = onnx.load(made.graph(16), load_external_data=False).graph
    found = {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}
    assert found == {"m.safetensors"}
