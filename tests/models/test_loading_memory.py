"""Loading holds the model once and one tensor: measured in a process of its own, against loaders that hold more."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB, SLACK = 2**20, 24  # MiB: what Python, the allocator and decoding some rows need
WIDTH, LAYERS, VOCAB, INNER = 1024, 3, 16384, 4096
KEYS = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 16, "n_positions": 64,
}  # fmt: skip

# Anonymous and shared memory is what the process owns; pages of the mapped file can be taken back at any time.
LOADER = """
import gguf, os, safetensors, sys, threading, torch
import models
from archcalc.hf import config_from_keys
from models import weights

def owned():
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem"))) * 1024

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], owned())

path, fault = sys.argv[1:]
parts, kept = weights._Ours.parts, []
def hoarding(self, name, read):
    return parts(self, name, lambda: (kept.append(read().clone()), kept[-1])[1])
def doubling(self, name, read):
    return parts(self, name, lambda: [read().clone() for _ in range(3)][0])
weights._Ours.parts = {"": parts, "hoarding": hoarding, "doubling": doubling}[fault]
torch.set_num_threads(1)
tiny = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
models.build(config_from_keys(tiny))  # imports what torch imports late
start, done = owned(), threading.Event()
peak = [start]
watcher = threading.Thread(target=watch)
watcher.start()
model = models.load(path)
done.set()
watcher.join()
sizes = [p.numel() * 4 for p in model.parameters()]
print(peak[0] - start, sum(sizes), owned() - start)
"""


def shapes():
    """The tensors of a GPT-2 by their names in its file, the largest one last: then the rest is there already."""
    for i in range(LAYERS):
        for name, rows, columns in (
            *(("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH)),
            *(("mlp.c_fc", WIDTH, INNER), ("mlp.c_proj", INNER, WIDTH)),
        ):
            yield f"h.{i}.{name}.weight", (rows, columns)
            yield f"h.{i}.{name}.bias", (columns,)
        for norm in ("ln_1", "ln_2"):
            yield f"h.{i}.{norm}.weight", (WIDTH,)
            yield f"h.{i}.{norm}.bias", (WIDTH,)
    yield from {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}.items()
    yield from {"wpe.weight": (64, WIDTH), "wte.weight": (VOCAB, WIDTH)}.items()


def write_safetensors(folder: Path, kind: str) -> Path:
    """A file of zeros that takes no memory and hardly a disk to write."""
    size, offset, header = {"F32": 4, "F16": 2}[kind], 0, {}
    for name, shape in shapes():
        end = offset + int(np.prod(shape)) * size
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    (folder / "config.json").write_text(json.dumps(KEYS))
    return folder


def write_gguf(folder: Path, kind: str) -> Path:
    """The same model as GGUF, written a tensor at a time."""
    writer, qtype = gguf.GGUFWriter(folder / "m.gguf", "gpt2"), gguf.GGMLQuantizationType[kind]
    renamed = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "attn.c_attn": "attn_qkv",
               "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "ln_1": "attn_norm",
               "ln_2": "ffn_norm"}  # fmt: skip
    for key, value in {"vocab_size": VOCAB, "embedding_length": WIDTH, "feed_forward_length": INNER,
                       "block_count": LAYERS, "attention.head_count": 16, "context_length": 64}.items():  # fmt: skip
        writer.add_uint32(f"gpt2.{key}", value)
    writer.add_float32("gpt2.attention.layer_norm_epsilon", 1e-5)
    stored = []
    for name, shape in shapes():
        block, _, end = name.rpartition(".")
        whole = f"blk.{block.split('.')[1]}." if block.startswith("h.") else ""
        own = qtype if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        shape = shape[::-1] if whole else shape
        bytes_ = gguf.quant_shape_to_byte_shape(shape, own)
        stored.append(bytes_)
        name = whole + renamed[".".join(block.split(".")[2:]) if whole else block] + "." + end
        writer.add_tensor_info(name, bytes_, np.dtype(np.uint8), int(np.prod(bytes_)), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for bytes_ in stored:
        writer.write_tensor_data(np.zeros(bytes_, np.uint8))
    writer.close()
    return folder / "m.gguf"


def measured(path: Path, fault: str = "") -> tuple[float, float, float]:
    """(peak, model, what is held afterwards) in MiB of a process that loads a file."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(path), fault], check=True, capture_output=True, text=True, timeout=300
    )
    return tuple(int(number) / MIB for number in done.stdout.split())


LARGEST = VOCAB * WIDTH * 4 / MIB  # the embedding in fp32


def test_a_mapped_file_is_held_once(tmp_path):
    """Even while a tensor is cast, transposed and split, there is no second copy of it."""
    peak, model, after = measured(write_safetensors(tmp_path, "F16"))
    assert model > 200
    assert model * 0.98 < after
    assert peak < model + SLACK


def test_a_gguf_file_is_held_once_beside_one_decoded_tensor(tmp_path):
    peak, model, after = measured(write_gguf(tmp_path, "Q4_K"))
    assert model * 0.98 < after
    assert peak < model + LARGEST + SLACK


@pytest.mark.parametrize("fault", ["hoarding", "doubling"])
def test_a_loader_that_holds_more_is_seen(tmp_path, fault):
    peak, model, _ = measured(write_safetensors(tmp_path, "F32"), fault)
    assert peak > model + LARGEST + SLACK
