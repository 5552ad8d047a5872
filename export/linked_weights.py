"""A build over the checkpoint's own safetensors files: linked into its folder, so that no number is written twice.

A data path never leaves a build's folder, and links by name could: these are hard links, further names of the files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from onnx import helper

from export.files import ExportError
from export.graph import Stored
from models import safetensors_file
from models.weights import Checkpoint, Part

WITHOUT = "or leave out --link-weights, and they are copied"


def linked_places(places: dict[str, Stored], found: Checkpoint | None) -> tuple[dict[str, Stored], list[Path]]:
    """The same places as they lie in the checkpoint's files, and these files.

    Raises: ExportError naming the first tensor that the build has in another format or order than the files.
    """
    if found is None or found.path.suffix == ".gguf":
        raise ExportError(f"--link-weights: needs weights in safetensors files; give them by --weights, {WITHOUT}")
    files = safetensors_file.files(found.path)
    begins = {name: (file, at) for file in reversed(files) for name, at in safetensors_file.offsets(file).items()}
    parts = {part.name: part for part in found.parts()}
    linked = {}
    for name, place in places.items():
        (weight,) = place.weights
        part = parts[weight]
        _check_as_stored(place, part)
        file, begin = begins[part.origin]
        linked[name] = replace(place, offset=begin + _distance(part), file=file.name)
    used = {place.file for place in linked.values()}
    return linked, [file for file in files if file.name in used]


@contextlib.contextmanager
def stand_ins(files: list[Path], folder: Path) -> Iterator[None]:
    """Empty files in place of the linked ones: onnx's checker takes one with several names for an attack."""
    for file in files:
        with (folder / file.name).open("wb") as stream:
            stream.truncate(file.stat().st_size)
    yield
    for file in files:
        (folder / file.name).unlink()


def link(files: list[Path], folder: Path) -> None:
    """Give the files a name in the folder too. Raises: ExportError where they cannot have one."""
    for file in files:
        try:
            os.link(file.resolve(), folder / file.name)  # the file itself, where that is a link into a store of files
        except OSError as error:
            raise ExportError(
                f"--link-weights: {file}: {error.strerror}; give an --out on the same filesystem, {WITHOUT}"
            ) from None


def _distance(part: Part) -> int:
    """Bytes from the beginning of the file's tensor to that of the part."""
    return part.tensor.data_ptr() - part.whole.data_ptr()


def _check_as_stored(place: Stored, part: Part) -> None:
    """Raise ExportError unless the place would hold the very bytes that the file has."""
    has, wants = (str(kind).removeprefix("torch.") for kind in (part.tensor.dtype, _torch(place)))
    if place.form or has != wants:
        wants = f"int{place.form.bits}" if place.form else wants
        raise ExportError(
            f"--link-weights: {part.origin} is {has} in the file and {wants} in the build; give the "
            f"file's --precision, {WITHOUT}"
        )
    same_memory = part.tensor.untyped_storage().data_ptr() == part.whole.untyped_storage().data_ptr()
    if not (same_memory and part.tensor.is_contiguous()):
        raise ExportError(f"--link-weights: {part.origin} has its rows in another order than the build; {WITHOUT[3:]}")


def _torch(place: Stored) -> torch.dtype:
    return getattr(torch, str(helper.tensor_dtype_to_np_dtype(place.data_type)))


def tensor_bytes(path: Path) -> int:
    """Bytes of tensors in a data file: all of a build's own, those after the header of a linked one."""
    header = min(safetensors_file.offsets(path).values()) if path.suffix == ".safetensors" else 0
    return path.stat().st_size - header
