"""Files in: the right tensors in the right places, and one clear error for whatever is wrong with a file."""

import json

import pytest
import torch
from tiny_models import DECODER_ONLY, ENCODER_DECODER, assert_close, ids, lively, llama_like

import models
from archcalc.errors import ArchcalcError
from models import weights

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file

LLAMA = DECODER_ONLY["llama"]


def file_tensors(model, names) -> dict[str, torch.Tensor]:
    """A model's tensors under a file's names (where one of ours is one of the file's)."""
    ours = {}
    for pattern, target in names.items():
        for i in range(len(model.layers)):
            for p in ("weight", "bias"):
                ours.setdefault(target.format(i=i, e=0, p=p), pattern.format(i=i, e=0, p=p))  # Llama's come first
    return {ours[name]: tensor.contiguous() for name, tensor in model.named_parameters()}


def write_safetensors(path, model, **changes):
    tensors = {**file_tensors(model, weights.HUGGING_FACE), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in GGUF's order: row 2j of a head is our row j, row 2j + 1 our row j + H/2."""
    rows = []
    for head in tensor.chunk(heads):
        half = len(head) // 2
        for j in range(half):
            rows += [head[j], head[j + half]]
    return torch.stack(rows)


def write_gguf(path, model, kind="F32", metadata=(), skip=()):
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        *((writer.add_vocab_size, 61), (writer.add_embedding_length, 16), (writer.add_feed_forward_length, 40)),
        *((writer.add_block_count, 2), (writer.add_head_count, 4), (writer.add_head_count_kv, 2)),
        *((writer.add_context_length, 64), (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4)),
        *((writer.add_key_length, 8),),
    ):
        add(value)
    for add, value in metadata:
        getattr(writer, add)(value)
    for name, tensor in file_tensors(model, weights.GGUF).items():
        if name in skip:
            continue
        if "attn_q." in name or "attn_k." in name:
            tensor = interleaved(tensor, 4 if "attn_q." in name else 2)
        qtype = gguf.GGMLQuantizationType[kind if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_gives_back_the_model_and_its_config(tmp_path):
    model = lively(LLAMA)
    path = write_gguf(tmp_path / "m.gguf", model)
    loaded = models.load(path, LLAMA)
    assert_close(loaded(ids(2, 9)), model(ids(2, 9)))
    assert torch.equal(loaded.layers[1].self_attn.k_proj.weight, model.layers[1].self_attn.k_proj.weight)
    config = models.gguf_file.gguf_config(path)
    assert (
        config
        | {
            "vocab_size": 61,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }
        == config
    )


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.2), ("Q4_1", 0.2)]
)
def test_gguf_types(tmp_path, kind, tolerance):
    model = models.build(llama_like())
    wide = {name: tensor for name, tensor in model.named_parameters() if tensor.shape[-1] == 32}
    assert len(wide) == 2  # o_proj of both layers: the rows that a block of 32 divides
    loaded = models.load(write_gguf(tmp_path / "m.gguf", model, kind), LLAMA)
    for name, tensor in wide.items():
        got = loaded.get_parameter(name)
        assert_close(got, tensor, tolerance)
        assert not torch.equal(got, tensor)


def test_a_gguf_of_a_tied_model(tmp_path):
    tied = llama_like(tied=True)
    model = lively(tied)
    path = write_gguf(tmp_path / "m.gguf", model)
    assert models.gguf_file.gguf_config(path)["tie_word_embeddings"] is True
    loaded = models.load(path, tied)
    assert loaded.lm_head.weight is loaded.embed_tokens.weight
    assert_close(loaded(ids(1, 5)), model(ids(1, 5)))


def test_loading_casts(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively(LLAMA))
    assert {p.dtype for p in models.load(path, LLAMA, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_every_wrong_tensor_is_named_at_once(tmp_path):
    path = write_safetensors(
        tmp_path / "m.safetensors",
        lively(LLAMA),
        **{
            "norm.weight": None,
            "layers.1.mlp.up_proj.weight": torch.zeros(41, 16),
            "layers.0.self_attn.q_proj.bias": torch.zeros(32),
            "layers.0.self_attn.q_norm.weight": torch.zeros(8),
        },
    )
    with pytest.raises(ArchcalcError) as caught:
        models.load(path, LLAMA)
    for part in (
        "norm.weight: missing",
        "layers.1.mlp.up_proj.weight: shape [41, 16], the model needs [40, 16]",
        "layers.0.self_attn.q_proj.bias: in the file, but not in the model",
        "layers.0.self_attn.q_norm.weight: not understood",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_misshapen_in_gguf(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", lively(LLAMA), skip=("blk.1.ffn_norm.weight",))
    with pytest.raises(ArchcalcError, match=r"layers\.1\.mlp_norm\.weight: missing"):
        models.load(path, LLAMA)
    wide = write_gguf(tmp_path / "w.gguf", lively(llama_like(models.attention.config.Attention(8, 2, 8))))
    with pytest.raises(ArchcalcError, match=r"q_proj\.weight: shape \[64, 16\], the model needs \[32, 16\]"):
        models.load(wide, LLAMA)


def test_more_or_fewer_layers_than_the_config(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", lively(LLAMA))
    with pytest.raises(ArchcalcError, match=r"layers\.1\.\S+: in the file, but not in the model"):
        models.load(path, llama_like(layers=1))
    with pytest.raises(ArchcalcError, match=r"layers\.2\.\S+: missing"):
        models.load(path, llama_like(layers=3))


def test_a_head_that_contradicts_the_tie(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively(LLAMA))
    with pytest.raises(ArchcalcError, match=r"tied to lm_head\.weight"):
        models.load(path, llama_like(tied=True))


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("write", [write_gguf, write_safetensors])
def test_a_truncated_file(tmp_path, write, cut):
    path = write(tmp_path / ("m.gguf" if write is write_gguf else "m.safetensors"), lively(LLAMA))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(ArchcalcError, match=rf"{path.name}: .*get it again"):
        models.load(path, LLAMA)


@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors", "folder"])
def test_no_file(tmp_path, name):
    with pytest.raises(ArchcalcError, match=name):
        models.load(tmp_path / name, LLAMA)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        "c:x.safetensors",
        "m.bin",
        7,
    ],
)
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(tmp_path / "secret.safetensors", lively(LLAMA))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": name}}))
    with pytest.raises(ArchcalcError, match=r"only \.safetensors files beside it are read"):
        models.load(folder, LLAMA)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": ["b"]}}', "[" * 100_000])
def test_a_broken_index(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ArchcalcError, match="no readable index"):
        models.load(tmp_path, LLAMA)


def test_a_pickle_is_not_read(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({}, path)
    with pytest.raises(ArchcalcError):
        models.load(path, LLAMA)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([("add_expert_count", 4)], "experts"),
        ([("add_rope_scaling_type", gguf.RopeScalingType.YARN)], "scaled rotary"),
    ],
)
def test_what_a_gguf_config_cannot_say(tmp_path, metadata, message):
    path = write_gguf(tmp_path / "m.gguf", lively(LLAMA), metadata=metadata)
    with pytest.raises(ArchcalcError, match=message):
        models.gguf_file.gguf_config(path)


def test_no_map_for_an_encoder_decoder(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", lively(LLAMA))
    with pytest.raises(ArchcalcError, match="no map"):
        models.load(path, ENCODER_DECODER["post-sinusoidal"])
