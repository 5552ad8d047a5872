"""GGUF files: every type of block against its specification, every architecture, and what is refused."""

import random

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from checkpoint_files import LLAMA, SIZES, changed, lively, llama_gguf, renamed, write_gguf  # noqa: E402
from tiny_models import assert_close, ids  # noqa: E402

import models  # noqa: E402
from archcalc.errors import ArchcalcError  # noqa: E402
from archcalc.hf import config_from_keys  # noqa: E402
from models import gguf_file  # noqa: E402
from models.names import gguf_tables  # noqa: E402
from models.parity.checkpoints import CHECKPOINTS  # noqa: E402

Type = gguf.GGMLQuantizationType


def fp16(block: np.ndarray, place: int) -> np.float32:
    return block[place : place + 2].view(np.float16)[0].astype(np.float32)


def q8_0(block):
    """A scale, 32 signed bytes."""
    return fp16(block, 0) * block[2:].view(np.int8).astype(np.float32)


def q4_0(block):
    """A scale; 16 bytes, whose low halves are the first 16 weights; eight is zero."""
    return fp16(block, 0) * (np.concatenate((block[2:] & 15, block[2:] >> 4)).astype(np.float32) - 8)


def q4_1(block):
    """A scale and a minimum; 16 bytes as above."""
    return fp16(block, 0) * np.concatenate((block[4:] & 15, block[4:] >> 4)).astype(np.float32) + fp16(block, 2)


def q4_k(block):
    """Two scales of the scales; 8 pairs of 6-bit numbers in 12 bytes; 4 x 32 bytes, each of two runs of 32 weights."""
    packed, found = block[4:16].astype(int), []
    for run in range(8):
        if run < 4:
            scale, least = packed[run] & 63, packed[run + 4] & 63
        else:
            scale = packed[run + 4] & 15 | packed[run - 4] >> 6 << 4
            least = packed[run + 4] >> 4 | packed[run] >> 6 << 4
        quarter = block[16 + run // 2 * 32 :][:32]
        weights = (quarter >> 4 if run % 2 else quarter & 15).astype(np.float32)
        found.append(fp16(block, 0) * np.float32(scale) * weights - fp16(block, 2) * np.float32(least))
    return np.concatenate(found)


def q6_k(block):
    """128 bytes of low halves, 64 of two high bits, 16 signed scales, a scale of them; 32 is zero."""
    scales, found = block[192:208].view(np.int8).astype(np.float32), np.empty(256, np.float32)
    for index in range(256):
        half, rest = divmod(index, 128)
        run, place = divmod(rest, 32)
        low = block[half * 64 + run % 2 * 32 + place] >> (4 if run > 1 else 0) & 15
        high = block[128 + half * 32 + place] >> (2 * run) & 3
        scale = fp16(block, 208) * scales[index // 16]
        found[index] = scale * np.float32(int(low) + int(high) * 16 - 32)
    return found


DECODERS = {"Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q4_K": q4_k, "Q6_K": q6_k}
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}  # where the fp16 numbers are


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes that no quantizer chose: every bit pattern is a weight, but scales must be numbers."""
    size, bytes_ = gguf.GGML_QUANT_SIZES[Type[kind]]
    chance = np.random.default_rng(0)
    blocks = chance.integers(0, 256, (rows * columns // size, bytes_), dtype=np.uint8)
    for place in SCALES[kind]:
        blocks[:, place : place + 2] = chance.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks


def read_one(path) -> torch.Tensor:
    ((name, read),) = gguf_file.tensors(path)
    assert name == "one"
    return read()


def write_one(path, data, kind: str):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("one", data, raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("at_once", [2**18, 600, 1])
@pytest.mark.parametrize("kind", DECODERS)
def test_every_weight_of_a_block_is_decoded_as_specified(tmp_path, monkeypatch, kind, at_once):
    monkeypatch.setattr(gguf_file, "AT_ONCE", at_once)
    blocks = random_blocks(kind, 5, 512)
    expected = np.concatenate([DECODERS[kind](block) for block in blocks]).reshape(5, 512)
    found = read_one(write_one(tmp_path / "m.gguf", blocks.reshape(5, -1), kind))
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("at_once", [2**18, 1])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_types(tmp_path, monkeypatch, kind, at_once):
    monkeypatch.setattr(gguf_file, "AT_ONCE", at_once)
    tensor = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    path = write_one(tmp_path / "m.gguf", gguf.quants.quantize(tensor.numpy(), Type[kind]), kind)
    stored = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    assert torch.equal(read_one(path), tensor.to(stored).float())


def test_the_types_read_are_those_tested():
    assert {"F32", "F16", "BF16", *DECODERS} == gguf_file.READABLE


def test_another_type_is_refused_by_name(tmp_path):
    data = gguf.quants.quantize(np.ones((2, 32), np.float32), Type.Q5_0)
    with pytest.raises(ArchcalcError, match=r"one: type Q5_0 cannot be read; use one of BF16, F16, F32, Q4_0"):
        read_one(write_one(tmp_path / "m.gguf", data, "Q5_0"))


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.2), ("Q4_1", 0.2)]
)
def test_a_quantized_model_is_near_the_model(tmp_path, kind, tolerance):
    model = lively()
    loaded = models.load(write_gguf(tmp_path / "m.gguf", llama_gguf(model), kind), LLAMA)
    name = "layers.1.self_attn.o_proj.weight"  # rows of 64 weights
    assert_close(loaded.get_parameter(name), model.get_parameter(name), tolerance)
    assert not torch.equal(loaded.get_parameter(name), model.get_parameter(name))


def assert_read_whole(path, model):
    """The file alone gives the same config, and the same weights."""
    loaded = models.load(path)
    assert loaded.config == model.config
    for name, tensor in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), tensor), name
    assert torch.equal(loaded(ids(2, 9)), model(ids(2, 9)))


@pytest.mark.parametrize("tied", [False, True])
def test_llama_from_its_file_alone(tmp_path, tied):
    model = lively(changed(tie_word_embeddings=tied))
    assert_read_whole(write_gguf(tmp_path / "m.gguf", llama_gguf(model)), model)


def test_llama_with_biases(tmp_path):
    model = lively(changed(attention_bias=True, mlp_bias=True))
    assert_read_whole(write_gguf(tmp_path / "m.gguf", llama_gguf(model)), model)


def tiny_config(name: str, **changes):
    """The config of a tiny checkpoint as GGUF tells it."""
    keys = CHECKPOINTS[name][1] | {"model_type": name} | changes
    return config_from_keys({key: value for key, value in keys.items() if value is not ...})


def rotary(config, **changes) -> dict:
    """The sizes of a file of another architecture than llama."""
    return SIZES | {"attention.key_length": None, "vocab_size": config.vocab_size} | changes


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_qwen_has_no_regrouped_rows(tmp_path, name):
    """Its rotary pairs are halves in both worlds; a map that regroups them fails here."""
    config = tiny_config(name, rms_norm_eps=1e-5, rope_theta=1e4)
    model = lively(config)
    sizes = rotary(config, **({"attention.key_length": 16} if name == "qwen3" else {}))
    tensors = renamed(model, gguf_tables.PLAIN)
    assert_read_whole(write_gguf(tmp_path / "m.gguf", tensors, architecture=name, sizes=sizes), model)


def fused(tensors: dict, wholes: dict) -> dict:
    """The tensors of which some are joined by rows: whole to its parts."""
    for whole, parts in wholes.items():
        for layer in range(2):
            for end in ("weight", "bias"):
                if f"blk.{layer}.{parts[0]}.{end}" in tensors:
                    rows = [tensors.pop(f"blk.{layer}.{part}.{end}") for part in parts]
                    tensors[f"blk.{layer}.{whole}.{end}"] = torch.cat(rows)
    return tensors


QKV = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}


@pytest.mark.parametrize("window", [6, 0])
def test_phi3(tmp_path, window):
    config = tiny_config("phi3", rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=window or None)
    model = lively(config)
    tensors = fused(renamed(model, gguf_tables.PLAIN), QKV | {"ffn_up": ("ffn_gate", "ffn_up")})
    sizes = rotary(config, **{"attention.sliding_window": window, "rope.dimension_count": 8})
    assert_read_whole(write_gguf(tmp_path / "m.gguf", tensors, architecture="phi3", sizes=sizes), model)


def test_gpt2(tmp_path):
    config = tiny_config("gpt2")
    model = lively(config)
    tensors = fused(renamed(model, gguf_tables.PLAIN | {"position_embd.weight": "embed_positions.weight"}), QKV)
    sizes = {"vocab_size": 61, "embedding_length": 32, "feed_forward_length": 128, "block_count": 2,
             "attention.head_count": 4, "context_length": 64}  # fmt: skip
    path = write_gguf(tmp_path / "m.gguf", tensors, "F32", "gpt2", sizes, {"attention.layer_norm_epsilon": 1e-5})
    assert_read_whole(path, model)


@pytest.mark.parametrize("stacked", [True, False])
def test_llama_with_experts_is_mixtral(tmp_path, stacked):
    config = tiny_config("mixtral", rms_norm_eps=1e-5, rope_theta=1e4)
    model = lively(config)
    shell = lively(changed())  # the same model but for the experts
    shell.load_state_dict(model.state_dict(), strict=False)
    tensors = {name: tensor for name, tensor in llama_gguf(shell).items() if name.split(".")[-2] not in FFN}
    for i, layer in enumerate(model.layers):
        tensors[f"blk.{i}.ffn_gate_inp.weight"] = layer.mlp.router.weight
        for ffn in FFN:
            matrix = ffn.removeprefix("ffn_") + "_proj.weight"
            experts = [layer.mlp.get_parameter(f"experts.{e}.{matrix}") for e in range(5)]
            if stacked:
                tensors[f"blk.{i}.{ffn}_exps.weight"] = torch.stack(experts)
            else:
                tensors |= {f"blk.{i}.{ffn}.{e}.weight": expert for e, expert in enumerate(experts)}
    sizes = SIZES | {"expert_count": 5, "expert_used_count": 2}
    assert_read_whole(write_gguf(tmp_path / "m.gguf", tensors, sizes=sizes), model)


FFN = ("ffn_gate", "ffn_up", "ffn_down")


@pytest.mark.parametrize(("name", "architecture"), [("gemma2", "gemma2"), ("gemma3_text", "gemma3")])
def test_gemma_stores_its_norms_with_the_one(tmp_path, name, architecture):
    config = tiny_config(name)
    model = lively(config)
    tensors = renamed(model, gguf_tables.GEMMA)
    tensors = {name: tensor + 1 if "norm" in name else tensor for name, tensor in tensors.items()}
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture)
    assert_close(models.load(path, config)(ids(2, 9)), model(ids(2, 9)))
    with pytest.raises(ArchcalcError, match=rf"{architecture}'.*give a config\.json"):
        models.load(path)


def test_an_architecture_that_is_not_understood(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", llama_gguf(lively()), architecture="mamba")
    with pytest.raises(ArchcalcError, match=r"general\.architecture='mamba': not understood; use a file of llama, "):
        models.load(path, LLAMA)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rope.scaling.type": 2}, r"llama\.rope\.scaling\.type: cannot be read from GGUF"),
        ({"attention.sliding_window": 4}, r"llama\.attention\.sliding_window: cannot be read"),
        ({"rope.dimension_count": 8}, r"llama\.rope\.dimension_count=8 with heads of 16"),
        ({"attention.value_length": 8}, r"llama\.attention\.value_length=8 with heads of 16"),
        ({"block_count": None}, r"lacks llama\.block_count"),
        ({"attention.head_count": 0}, "num_attention_heads"),
    ],
)
def test_metadata_that_are_not_understood(tmp_path, sizes, message):
    path = write_gguf(tmp_path / "m.gguf", llama_gguf(lively()), sizes=SIZES | sizes)
    with pytest.raises(ArchcalcError, match=message):
        models.load(path)


def test_scaled_frequencies_need_a_config(tmp_path):
    tensors = llama_gguf(lively()) | {"rope_freqs.weight": torch.ones(8)}
    path = write_gguf(tmp_path / "m.gguf", tensors)
    with pytest.raises(ArchcalcError, match=r"rope_freqs\.weight: cannot be read from GGUF"):
        models.load(path)
    models.load(path, LLAMA)


def test_missing_and_misshapen_tensors(tmp_path):
    tensors = llama_gguf(lively())
    del tensors["blk.1.ffn_norm.weight"]
    tensors["blk.0.attn_q.weight"] = torch.zeros(48, 32)
    tensors["blk.0.ffn_up.weight"] = torch.zeros(41, 32)
    with pytest.raises(ArchcalcError) as caught:
        models.load(write_gguf(tmp_path / "m.gguf", tensors), LLAMA)
    for part in (
        "layers.1.mlp_norm.weight: missing",
        "layers.0.self_attn.q_proj.weight: shape [48, 32], the model needs [64, 32]",
        "layers.0.mlp.up_proj.weight: shape [41, 32], the model needs [40, 32]",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("cut", [0.0, 0.01, 0.1, 0.5, 0.95])
def test_a_truncated_file(tmp_path, cut):
    path = write_gguf(tmp_path / "m.gguf", llama_gguf(lively()))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(ArchcalcError, match=rf"{path.name}: .*get it again"):
        models.load(path, LLAMA)


def test_an_array_without_end(tmp_path):
    """A file may say that a list of numbers has 2^60 entries; reading on beyond its end would never stop."""
    key = b"general.many"
    head = b"GGUF" + np.array([3], "<u4").tobytes() + np.array([0, 1], "<u8").tobytes()
    entry = np.array([len(key)], "<u8").tobytes() + key + np.array([9, 0], "<u4").tobytes()
    (tmp_path / "m.gguf").write_bytes(head + entry + np.array([2**60], "<u8").tobytes())
    with pytest.raises(ArchcalcError, match="it ends too early"):
        models.load(tmp_path / "m.gguf", LLAMA)


def test_damaged_files_give_a_model_or_an_error(tmp_path):
    whole = write_gguf(tmp_path / "m.gguf", llama_gguf(lively())).read_bytes()
    chance, errors = random.Random(0), []
    for index in range(150):
        damaged = bytearray(whole)
        for _ in range(2):
            damaged[chance.randrange(1800)] = chance.randrange(256)  # metadata and names of tensors
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(damaged)
        try:
            models.load(path)
        except ArchcalcError as error:
            errors.append(str(error))
        path.unlink()
    assert len(errors) > 75
    assert not [error for error in errors if "\n" in error]
