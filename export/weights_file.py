"""The data file of a build: written in one go from start to end, as the weights come, some rows at a time.

Conversion and writing take place at once: rows are converted on all cores while those before them are written.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from onnx import numpy_helper

from export.graph import Stored
from export.precision import ExportPrecision
from export.quantize import quantize
from models.gguf_file import WeightsError

AT_ONCE = 2**21  # numbers; a core at work holds some times their size
Rows = Iterable[tuple[str, int, torch.Tensor]]  # (weight, first row, rows), each weight's in order
Item, Result = TypeVar("Item"), TypeVar("Result")


class Piece(NamedTuple):
    """Rows of a weight, and where they go."""

    places: list[Stored]
    start: int
    rows: torch.Tensor


class Converted(NamedTuple):
    """A piece as it is stored: bytes of its plain place, integers [in, rows] and their scales [..., rows]."""

    piece: Piece
    plain: memoryview | None
    integers: tuple[np.ndarray, np.ndarray] | None


def write_weights(path: Path, places: dict[str, Stored], rows: Rows, precision: ExportPrecision) -> str:
    """Write the file; its SHA-256. Memory holds some pieces, and one tensor where it is stored as integers.

    Args:
        rows: of weights in the order of `places`; those that have none are left out.
    Raises: WeightsError for weights that do not come as `places` says, OSError where they cannot be written.
    """
    cores = torch.get_num_threads()
    with path.open("wb") as stream, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(cores) as many:
        file = _DataFile(stream)
        converted = _ahead(many, lambda piece: _convert(piece, precision), _pieces(places, rows), cores)
        for _ in _ahead(one, file.write, converted, 2):
            pass
        if stream.tell() != sum(place.nbytes for place in places.values()):
            raise WeightsError("weights: changed while they were read; build again")
    return file.digest.hexdigest()


def _ahead(pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Result]:
    """`map(work, items)` in order, with at most `count` further items being worked on."""
    pending: deque = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > count:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _pieces(places: dict[str, Stored], rows: Rows) -> Iterator[Piece]:
    wanted: dict[str, list[Stored]] = {}
    for place in places.values():
        wanted.setdefault(place.weight, []).append(place)
    for name, start, tensor in rows:
        found = wanted.get(name, [])
        step = max(1, AT_ONCE // max(1, tensor[0].numel()))
        for first in range(0, len(tensor) if found else 0, step):
            yield Piece(found, start + first, tensor[first : first + step].detach())


def _convert(piece: Piece, precision: ExportPrecision) -> Converted:
    plain = integers = None
    if kept := next((place for place in piece.places if place.form is None), None):
        kind = precision.torch if kept.data_type == precision.onnx else torch.float32
        plain = memoryview(_numpy(piece.rows.to(kind))).cast("B")
    if form := next((place.form for place in piece.places if place.form), None):
        whole, scale = quantize(piece.rows.T.float().numpy(), form)
        integers = whole, scale.astype(precision.numpy)
    return Converted(piece, plain, integers)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bytes; numpy has no bf16."""
    tensor = tensor.contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


class _DataFile:
    """What is written so far. Integers wait for the last row of their weight, as they lie the other way round."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.digest = stream, hashlib.sha256()
        self.waiting: tuple[np.ndarray, ...] = ()

    def write(self, found: Converted) -> None:
        """Write a piece, which must be what comes next."""
        places, start, rows = found.piece
        plain, *_ = places
        if start == 0 and self.stream.tell() != plain.offset:
            raise WeightsError(f"{plain.weight}: came in another order than it was announced; build again")
        if found.plain is not None:
            self._append(found.plain)
        if found.integers is None:
            return
        stored = [place for place in places if place.form]
        count = stored[0].shape[-1]
        if start == 0:
            self.waiting = tuple(np.empty((*part.shape[:-1], count), part.dtype) for part in found.integers)
        for whole, part in zip(self.waiting, found.integers, strict=True):
            whole[..., start : start + len(rows)] = part
        if start + len(rows) == count:
            for whole in self.waiting:
                self._append_array(whole)
            self.waiting = ()

    def _append_array(self, array: np.ndarray) -> None:
        step = max(1, AT_ONCE // max(1, array[0].size)) * 2  # an even number of rows, as two int4 share a byte
        for start in range(0, len(array), step):
            self._append(numpy_helper.from_array(array[start : start + step]).raw_data)

    def _append(self, content: memoryview | bytes) -> None:
        self.digest.update(content)
        self.stream.write(content)
