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
from export.quantize import INTEGERS, quantize
from models.gguf_file import WeightsError

AT_ONCE = 2**21  # numbers; a core at work holds some times their size
Rows = Iterable[tuple[str, int, torch.Tensor]]  # (weight, first row, rows), each weight's in order
Item, Result = TypeVar("Item"), TypeVar("Result")


class Piece(NamedTuple):
    """Rows of a weight and where they go: the first of them to row `start` of each place."""

    targets: list[tuple[Stored, int]]
    rows: torch.Tensor


class Converted(NamedTuple):
    """A piece as it is stored: its plain numbers [rows, ...], and integers [in, rows] with their scales [..., rows]."""

    piece: Piece
    plain: np.ndarray | None
    integers: np.ndarray | None
    scale: np.ndarray | None

    def numbers(self, place: Stored) -> np.ndarray:
        """Those for one of the piece's places."""
        if place.form is None:
            return self.plain
        return self.integers if place.data_type == INTEGERS[place.form.bits][0] else self.scale


def write_weights(path: Path, places: dict[str, Stored], rows: Rows, precision: ExportPrecision) -> str:
    """Write the file; its SHA-256. Memory holds some pieces, and whole tensors that are stored as integers or in packs.

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
    wanted: dict[str, list[tuple[Stored, int]]] = {}
    for place in places.values():
        for weight, begin in place.weights.items():
            wanted.setdefault(weight, []).append((place, begin))
    for name, start, tensor in rows:
        found = wanted.get(name, [])
        step = max(1, AT_ONCE // max(1, tensor[0].numel()))
        for first in range(0, len(tensor) if found else 0, step):
            targets = [(place, begin + start + first) for place, begin in found]
            yield Piece(targets, tensor[first : first + step].detach())


def _convert(piece: Piece, precision: ExportPrecision) -> Converted:
    plain = integers = scale = None
    if kept := next((place for place, _ in piece.targets if place.form is None), None):
        kind = precision.torch if kept.data_type == precision.onnx else torch.float32
        plain = _numpy(piece.rows.to(kind))
    if form := next((place.form for place, _ in piece.targets if place.form), None):
        integers, scale = quantize(piece.rows.T.float().numpy(), form)
        scale = scale.astype(precision.numpy)
    return Converted(piece, plain, integers, scale)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bytes; numpy has no bf16."""
    tensor = tensor.contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


class _DataFile:
    """What is written so far, and what waits for its last rows: packs, and integers, which lie the other way round."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.digest = stream, hashlib.sha256()
        self.waiting: dict[str, _Waiting] = {}

    def write(self, found: Converted) -> None:
        """Take a piece, and write what is whole with it, which must be what comes next."""
        for place, start in found.piece.targets:
            numbers = found.numbers(place)
            if not place.waits:
                self._check_next(place, start)
                self._append(memoryview(numbers).cast("B"))
                continue
            waiting = self.waiting.setdefault(place.name, _Waiting(place, numbers))
            if waiting.take(numbers, start):
                self._check_next(place)
                self._append_array(self.waiting.pop(place.name).whole)

    def _check_next(self, place: Stored, rows: int = 0) -> None:
        if self.stream.tell() != place.offset + rows * (place.nbytes // max(1, place.shape[0])):
            raise WeightsError(f"{place.name}: came in another order than it was announced; build again")

    def _append_array(self, array: np.ndarray) -> None:
        step = max(1, AT_ONCE // max(1, array[0].size)) * 2  # an even number of rows, as two int4 share a byte
        for start in range(0, len(array), step):
            self._append(numpy_helper.from_array(array[start : start + step]).raw_data)

    def _append(self, content: memoryview | bytes) -> None:
        self.digest.update(content)
        self.stream.write(content)


class _Waiting:
    """The numbers of a place of which some rows have not come yet. Args: like: some of them."""

    def __init__(self, place: Stored, like: np.ndarray):
        self.whole = np.empty(place.shape, like.dtype)
        self._by_row = np.moveaxis(self.whole, -1, 0) if place.form else self.whole  # rows of weights are columns here
        self._by_column, self._missing = place.form is not None, len(self._by_row)

    def take(self, numbers: np.ndarray, start: int) -> bool:
        """Put in the next rows of a weight; whether they were the last."""
        rows = np.moveaxis(numbers, -1, 0) if self._by_column else numbers
        self._by_row[start : start + len(rows)] = rows
        self._missing -= len(rows)
        return not self._missing
