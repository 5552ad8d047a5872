"""Reading safetensors files: one, or the shards that an index names. Never pickle.

Source: the format, https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import torch

from models.gguf_file import WeightsError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LARGEST_INDEX = 100_000_000  # bytes; that of a model of a trillion parameters has 20 million
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
MAPPED = 2**28  # bytes


def files(path: Path) -> list[Path]:
    """The files that a folder, an index or a file stands for."""
    if path.is_dir():
        path = next((path / name for name in (INDEX, SINGLE) if (path / name).exists()), path)
    if path.is_dir():
        pickled = sorted(file.name for suffix in ("*.bin", "*.pt", "*.pth") for file in path.glob(suffix))
        if pickled:
            raise WeightsError(
                f"{path}: has {pickled[0]}, a pickle, which is a program and never read; save it as {SINGLE}"
            )
        raise WeightsError(f"{path}: has no {SINGLE} and no {INDEX}; give the folder of a model")
    if path.suffix not in (".json", ".safetensors"):
        raise WeightsError(f"{path}: neither .safetensors nor .gguf; other files are not read")
    return _shards(path) if path.suffix == ".json" else [path]


def _shards(index: Path) -> list[Path]:
    """The files an index names. They must lie beside it: the index is not to be trusted."""
    try:
        if index.stat().st_size > LARGEST_INDEX:
            raise ValueError(f"larger than {LARGEST_INDEX} bytes")
        found = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise WeightsError(f"{index}: no readable index ({error!r}); get it again") from error
    for name in found:
        plain = isinstance(name, str) and name == PurePosixPath(name).name == PureWindowsPath(name).name
        if not plain or not name.endswith(".safetensors"):
            raise WeightsError(f"{index}: weight_map names {name!r}; only .safetensors files beside it are read")
    return [index.parent / name for name in sorted(found)]


def tensors(paths: list[Path]) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Each tensor's name and a function that maps it into memory; it is read where it is used."""
    for path in paths:
        if not path.is_file():
            raise WeightsError(f"{path}: no such file; get it again")
        mapped = _Mapped(path)
        for name in mapped.names():
            yield name, lambda name=name, mapped=mapped: mapped.tensor(name)
        mapped.close()


class _Mapped:
    """A file that is closed and opened anew from time to time: what was read of it stays in memory until then."""

    def __init__(self, path: Path):
        self.path, self.opened, self.left = path, None, 0

    def names(self) -> list[str]:
        """Of its tensors, in the file's order."""
        return self._asked(lambda file: file.offset_keys())

    def tensor(self, name: str) -> torch.Tensor:
        found = self._asked(lambda file: file.get_tensor(name))
        self.left -= found.nbytes
        return found

    def close(self) -> None:
        """Until it is asked again: its readers may outlive their turn."""
        self.opened, self.left = None, 0

    def _asked(self, question: Callable):
        import safetensors

        try:
            if self.left <= 0:
                self.opened, self.left = safetensors.safe_open(self.path, "pt"), MAPPED
            return question(self.opened)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{self.path}: no readable safetensors file ({error}); get it again") from error


def offsets(path: Path) -> dict[str, int]:
    """Where in the file each tensor's bytes begin. The library has checked that they lie in it one after another.

    Raises: WeightsError for a file that the library refuses.
    """
    _Mapped(path).names()
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > LARGEST_HEADER:
            raise WeightsError(f"{path}: a header of {length} bytes; get it again")
        header = json.loads(stream.read(length))
    return {name: 8 + length + about["data_offsets"][0] for name, about in header.items() if name != "__metadata__"}
