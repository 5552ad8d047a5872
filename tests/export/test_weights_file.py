"""Weights on their way into the data file: from memory, a checkpoint or chance, whole or in pieces, the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import KEYS, LLAMA, SIZES, changed, lively, renamed, write_gguf, write_safetensors
from onnx import numpy_helper
from safetensors.torch import save_file

import models
from archcalc.presets import preset
from export import weights_file
from export.cli import main
from export.files import sha256
from export.graph import Stored
from export.precision import export_precision
from export.quantize import INTEGERS, Integers, number_name, quantize, scale_name
from export.source import file_source, model_source, random_source
from export.weights_file import write_weights
from models.gguf_file import WeightsError
from models.names import gguf_tables, llama_like
from models.weights import checkpoint


def places_of(weights: dict[str, torch.Tensor], precision, form: Integers | None = None) -> dict[str, Stored]:
    """Every weight as it is; matrices also as integers, where a form is given."""
    places, offset = {}, 0
    for name, tensor in weights.items():
        found = [Stored(name, {name: 0}, precision.onnx, tuple(tensor.shape), 0)]
        if form and tensor.ndim == 2:
            rows, columns = reversed(tensor.shape)
            kind, scales = INTEGERS[form.bits][0], form.scale_shape(rows, columns)
            found.append(Stored(number_name(name, form), {name: 0}, kind, (rows, columns), 0, form))
            found.append(Stored(scale_name(name), {name: 0}, precision.onnx, scales, 0, form))
        for one in found:
            places[one.name] = Stored(one.name, {name: 0}, one.data_type, one.shape, offset, one.form)
            offset += one.nbytes
    return places


def written(path: Path, source, precision, form=None) -> dict[str, bytes]:
    """The bytes of each tensor of a data file."""
    places = places_of(source.weights, precision, form)
    digest = write_weights(path, places, source.rows(), precision)
    assert digest == sha256(path)
    data = path.read_bytes()
    assert len(data) == sum(place.nbytes for place in places.values())
    return {name: data[place.offset : place.offset + place.nbytes] for name, place in places.items()}


@pytest.mark.parametrize("at_once", [1, 100, 2**21])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("form", [None, Integers(4, 16), Integers(8, 32), Integers(8, None)])
def test_pieces_are_stored_as_the_whole(tmp_path, monkeypatch, at_once, precision, form):
    monkeypatch.setattr(weights_file, "AT_ONCE", at_once)
    kind, model = export_precision(precision), torch.nn.Sequential(torch.nn.Linear(40, 23), torch.nn.Embedding(5, 6))
    found = written(tmp_path / "w", model_source(model, {}), kind, form)
    for name, tensor in model.state_dict().items():
        assert found[name] == numpy_helper.from_array(tensor.numpy().astype(kind.numpy)).raw_data
        if form and tensor.ndim == 2:
            whole, scale = quantize(tensor.T.numpy(), form)
            assert found[number_name(name, form)] == numpy_helper.from_array(np.ascontiguousarray(whole)).raw_data
            assert found[scale_name(name)] == scale.astype(kind.numpy).tobytes()


def test_random_weights_are_those_of_the_model(tmp_path):
    config, kind = preset("tiny-decoder"), export_precision("fp16")
    source = random_source(config)
    assert source.origin() == {"kind": "random", "seed": 0}
    whole = model_source(models.build(config), {})
    assert written(tmp_path / "a", source, kind) == written(tmp_path / "b", whole, kind)


def _folder(tmp_path: Path, dtype=torch.float32) -> Path:
    """A checkpoint in two shards."""
    model = lively().to(dtype)
    tensors = list(renamed(model, llama_like.LLAMA).items())
    where = {}
    for index in range(2):
        save_file(dict(tensors[index::2]), tmp_path / f"model-{index}.safetensors")
        where |= dict.fromkeys(dict(tensors[index::2]), f"model-{index}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    return tmp_path


@pytest.mark.parametrize("kind", ["file", "shards", "gguf"])
def test_a_checkpoint_is_stored_as_the_model_that_is_loaded_from_it(tmp_path, kind):
    if kind == "file":
        path = write_safetensors(tmp_path / "m.safetensors", lively())
    elif kind == "shards":
        path = _folder(tmp_path, torch.bfloat16)
    else:
        tensors = renamed(lively(), gguf_tables.TABLES["llama"])
        path = write_gguf(tmp_path / "m.gguf", tensors, "Q8_0", sizes=SIZES | {"attention.value_length": 16})
    precision = export_precision("fp16")
    source = file_source(checkpoint(path, LLAMA))
    loaded = model_source(models.load(path, LLAMA), {})
    assert source.weights.keys() == loaded.weights.keys()
    assert all(tensor.is_meta for tensor in source.weights.values())
    assert written(tmp_path / "a", source, precision) == written(tmp_path / "b", loaded, precision)
    digests = source.origin()["sha256"]
    files = sorted(tmp_path.glob("model-*.safetensors")) if kind == "shards" else [path]
    assert digests == ({file.name: sha256(file) for file in files} if len(files) > 1 else sha256(path))


def test_weights_in_another_order_or_too_few_are_refused(tmp_path):
    model, kind = torch.nn.Linear(3, 2), export_precision("fp32")
    source = model_source(model, {})
    places, rows = places_of(source.weights, kind), list(source.rows())
    with pytest.raises(WeightsError, match="bias: came in another order"):
        write_weights(tmp_path / "w", places, rows[::-1], kind)
    with pytest.raises(WeightsError, match="changed while they were read; build again"):
        write_weights(tmp_path / "w", places, rows[:1], kind)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, "norm.weight: missing"),
        ({"model.norm.weight": torch.zeros(33)}, "norm.weight: shape [33], the model needs [32]"),
        ({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}, "type torch.int8 cannot be read; use fp32"),
        ({"model.strange": torch.zeros(1)}, "model.strange: not understood"),
        ({"model.layers.1.mlp.up_proj.bias": torch.zeros(40)}, "in the file, but not in the model"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, capsys, changes, message):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(KEYS))
    path = write_safetensors(tmp_path / "m.safetensors", lively(), **changes)
    out = tmp_path / "deep" / "build"
    assert main(["build", "--config", str(config), "--weights", str(path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.parent.exists()


def test_two_values_of_a_tied_matrix_are_found_before_anything_is_written(tmp_path):
    tied = checkpoint(write_safetensors(tmp_path / "m.safetensors", lively()), changed(tie_word_embeddings=True))
    with pytest.raises(WeightsError, match="twice in the file"):
        file_source(tied)
