"""Files in: the right tensors in the right places, and one clear error for whatever is wrong with a file."""

import json
import os
import random
import struct

import pytest
import torch

pytest.importorskip("gguf", reason="gguf is not installed")
save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file

from checkpoint_files import KEYS, LLAMA, changed, lively, renamed, write_safetensors  # noqa: E402

import models  # noqa: E402
from archcalc.config import ModelConfig  # noqa: E402
from archcalc.errors import ArchcalcError  # noqa: E402
from models import safetensors_file, weights  # noqa: E402
from models.names import llama_like  # noqa: E402


def assert_same(actual, expected):
    """Equal weights, all of them."""
    actual, expected = dict(actual.named_parameters()), dict(expected.named_parameters())
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def write_folder(folder, model, shards=1):
    """A folder in Hugging Face's layout."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(KEYS))
    tensors = list(renamed(model, llama_like.LLAMA).items())
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    where = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        save_file(dict(tensors[index::shards]), folder / file)
        where |= dict.fromkeys((name for name, _ in tensors[index::shards]), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("part", ["", "file"])
def test_a_folder_says_its_config_itself(tmp_path, shards, part):
    model = lively()
    folder = write_folder(tmp_path / "model", model, shards)
    file = "model.safetensors" if shards == 1 else "model.safetensors.index.json"
    loaded = models.load(folder / file if part else folder)
    assert loaded.config == LLAMA
    assert loaded.config.name == "model"
    assert_same(loaded, model)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_given_config_speaks_for_a_file_without_one(tmp_path):
    model = lively()
    path = write_safetensors(tmp_path / "m.safetensors", model)
    assert_same(models.load(path, LLAMA), model)
    with pytest.raises(ArchcalcError, match=r"config\.json"):
        models.load(path)


def test_named_tensors_without_a_file():
    model = lively()
    tensors = renamed(model, llama_like.LLAMA)
    loaded = weights.assign(LLAMA, ((name, lambda tensor=tensor: tensor) for name, tensor in tensors.items()))
    assert_same(loaded, model)
    tensors["norm.weight"].zero_()
    assert loaded.norm.weight.abs().sum() > 0, "a model must own its memory"


def test_a_config_of_no_family_has_no_names(tmp_path):
    bare = ModelConfig(LLAMA.vocab_size, LLAMA.hidden_size, LLAMA.max_position_embeddings, LLAMA.decoder)
    with pytest.raises(ArchcalcError, match=r"model_type=None"):
        models.load(write_safetensors(tmp_path / "m.safetensors", lively()), bare)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_loading_casts(tmp_path, stored):
    model = lively()
    tensors = {name: tensor.to(stored) for name, tensor in renamed(model, llama_like.LLAMA).items()}
    save_file(tensors, tmp_path / "m.safetensors")
    loaded = models.load(tmp_path / "m.safetensors", LLAMA, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert torch.equal(loaded.norm.weight, model.norm.weight.to(stored).bfloat16())


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_quantized_tensors_are_refused_by_name(tmp_path, stored):
    path = write_safetensors(
        tmp_path / "m.safetensors",
        lively(),
        **{"model.layers.0.mlp.up_proj.weight": torch.ones(40, 32).to(stored)},
    )
    with pytest.raises(ArchcalcError, match=r"layers\.0\.mlp\.up_proj\.weight: type torch\.\w+8\w* cannot be read"):
        models.load(path, LLAMA)


def test_every_wrong_tensor_is_named_at_once(tmp_path):
    path = write_safetensors(
        tmp_path / "m.safetensors",
        lively(),
        **{
            "model.norm.weight": None,
            "model.layers.1.mlp.up_proj.weight": torch.zeros(41, 32),
            "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
            "model.layers.0.self_attn.r_proj.weight": torch.zeros(8),
        },
    )
    with pytest.raises(ArchcalcError) as caught:
        models.load(path, LLAMA)
    for part in (
        "norm.weight: missing",
        "layers.1.mlp.up_proj.weight: shape [41, 32], the model needs [40, 32]",
        "layers.0.self_attn.q_proj.bias: in the file, but not in the model",
        "model.layers.0.self_attn.r_proj.weight: not understood",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_at_most_twenty_wrong_tensors_are_named(tmp_path):
    save_file({f"strange.{index}": torch.zeros(1) for index in range(30)}, tmp_path / "m.safetensors")
    with pytest.raises(ArchcalcError) as caught:
        models.load(tmp_path / "m.safetensors", LLAMA)
    assert str(caught.value).count(";") == 21  # between 20 problems, before how many more, before the hint
    assert f"; and {30 + 21 - 20} more; " in str(caught.value)


def test_a_name_cannot_break_the_line(tmp_path):
    save_file({"a\nb\x1b[2J": torch.zeros(1), "long" * 999: torch.zeros(1)}, tmp_path / "m.safetensors")
    with pytest.raises(ArchcalcError, match=r"a\\nb\\x1b\[2J': not understood") as caught:
        models.load(tmp_path / "m.safetensors", LLAMA)
    assert str(caught.value).isprintable()
    assert "long" * 60 not in str(caught.value)


def test_more_or_fewer_layers_than_the_config(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively())
    with pytest.raises(ArchcalcError, match=r"layers\.1\.\S+: in the file, but not in the model"):
        models.load(path, changed(num_hidden_layers=1))
    with pytest.raises(ArchcalcError, match=r"layers\.2\.\S+: missing"):
        models.load(path, changed(num_hidden_layers=3))


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    tied = changed(tie_word_embeddings=True)
    model = lively(tied)
    embedding = model.embed_tokens.weight
    for head in (None, embedding.clone()):
        path = write_safetensors(tmp_path / "m.safetensors", model, **{"lm_head.weight": head})
        loaded = models.load(path, tied)
        assert loaded.lm_head.weight is loaded.embed_tokens.weight
        assert_same(loaded, model)
    write_safetensors(tmp_path / "m.safetensors", model, **{"lm_head.weight": embedding + 1e-3})
    with pytest.raises(ArchcalcError, match=r"embed_tokens\.weight: twice .* tied to lm_head\.weight"):
        models.load(tmp_path / "m.safetensors", tied)


@pytest.mark.parametrize("where", ["m.safetensors", "folder", "m.onnx"])
def test_no_file(tmp_path, where):
    with pytest.raises(ArchcalcError, match=where):
        models.load(tmp_path / where, LLAMA)


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_file(tmp_path, cut):
    path = write_safetensors(tmp_path / "m.safetensors", lively())
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(ArchcalcError, match=rf"{path.name}: .*get it again"):
        models.load(path, LLAMA)


@pytest.mark.parametrize("length", [2**62, 2**40, 200_000_000, 0])
def test_a_header_of_an_impossible_length(tmp_path, length):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ArchcalcError):
        models.load(path, LLAMA)


def test_damaged_files_give_the_model_or_an_error(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively())
    whole, chance = path.read_bytes(), random.Random(0)
    errors = []
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[chance.randrange(2500)] = chance.randrange(256)  # in the header, most likely
        path.write_bytes(damaged)
        try:
            models.load(path, LLAMA)
        except ArchcalcError as error:
            errors.append(str(error))
    assert len(errors) > 50
    assert not [error for error in errors if "\n" in error]


NOT_BESIDE = ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "c:x.safetensors",
              "m.bin", 7]  # fmt: skip


@pytest.mark.parametrize("name", NOT_BESIDE)
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(tmp_path / "secret.safetensors", lively())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": name}}))
    with pytest.raises(ArchcalcError, match=r"only \.safetensors files beside it are read"):
        models.load(folder, LLAMA)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": ["b"]}}', "[" * 100_000])
def test_a_broken_index(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ArchcalcError, match="no readable index"):
        models.load(tmp_path, LLAMA)


def test_an_index_without_end(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "model", lively(), shards=2)
    monkeypatch.setattr(safetensors_file, "LARGEST_INDEX", 100)
    with pytest.raises(ArchcalcError, match="larger than 100 bytes"):
        models.load(folder)


def test_a_shard_is_missing_or_no_file(tmp_path):
    folder = write_folder(tmp_path / "model", lively(), shards=3)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.unlink()
    with pytest.raises(ArchcalcError, match=r"model-00002-of-00003\.safetensors: no such file"):
        models.load(folder)
    if hasattr(os, "mkfifo"):
        os.mkfifo(shard)  # opening it would wait for ever
        with pytest.raises(ArchcalcError, match=r"model-00002-of-00003\.safetensors: no such file"):
            models.load(folder)


def test_a_link_to_a_store_of_files_is_followed(tmp_path):
    """A download cache holds its files under other names elsewhere."""
    model = lively()
    write_safetensors(tmp_path / "blob", model)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blob")
    assert_same(models.load(tmp_path / "snapshot", LLAMA), model)


class Trap:
    """What a pickle can do: run a program when it is read."""

    def __reduce__(self):
        return pytest.fail, ("the pickle was read",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt"])
def test_a_pickle_is_never_read(tmp_path, name):
    torch.save(Trap(), tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    with pytest.raises(ArchcalcError, match=rf"{name}, a pickle.*save it as model\.safetensors"):
        models.load(tmp_path)
    with pytest.raises(ArchcalcError, match=r"neither \.safetensors nor \.gguf"):
        models.load(tmp_path / name)
    write_safetensors(tmp_path / "model.safetensors", lively())
    models.load(tmp_path)  # beside the other, it does no harm
