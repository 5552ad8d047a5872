"""The data file of a build: each tensor at its place, written as it comes, one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from onnx import numpy_helper

from export.graph import Stored
from export.precision import ExportPrecision
from export.quantize import dequantize, number_name, quantize


def write_weights(
    path: Path, places: dict[str, Stored], tensors: Iterable[tuple[str, torch.Tensor]], precision: ExportPrecision
) -> None:
    """Write the file from the model's tensors, in any order; memory holds one of them at a time."""
    wanted: dict[str, list[Stored]] = {}
    for place in places.values():
        wanted.setdefault(place.weight, []).append(place)
    with path.open("wb") as stream:
        for name, tensor in tensors:
            for place, content in _contents(wanted.get(name, []), tensor.detach(), precision):
                stream.seek(place.offset)
                stream.write(content)


def _contents(found: list[Stored], tensor: torch.Tensor, precision: ExportPrecision):
    """(place, its bytes) of everything that is stored of one weight."""
    plain = [place for place in found if place.form is None]
    for place in plain:
        yield place, memoryview(_numpy(tensor.to(precision.torch))).cast("B")
    form = next((place.form for place in found if place.form), None)
    if form is None:
        return
    whole, scale = quantize(tensor.T.float().numpy(), form)
    for place in found:
        if place.form:
            array = whole if place.name == number_name(place.weight, form) else scale.astype(precision.numpy)
            yield place, numpy_helper.from_array(np.ascontiguousarray(array)).raw_data


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bytes; numpy has no bf16."""
    tensor = tensor.contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


@torch.no_grad()
def as_stored(model: torch.nn.Module, places: dict[str, Stored], precision: ExportPrecision) -> None:
    """Give the model the numbers that its quantized matrices stand for, in place: what a build is held against.

    A tied matrix that the head has as integers is untied.
    """
    for place in places.values():
        if place.form is None or place.name != number_name(place.weight, place.form):
            continue
        owner, _, leaf = place.weight.rpartition(".")
        weight = model.get_parameter(place.weight)
        whole, scale = quantize(weight.T.float().numpy(), place.form)
        numbers = dequantize(whole, scale.astype(precision.numpy), place.form)
        module = model.get_submodule(owner)
        if isinstance(module, torch.nn.Embedding):  # the head reads the integers, the embedding itself
            module, leaf = model.lm_head, "weight"
        setattr(module, leaf, torch.nn.Parameter(torch.from_numpy(numbers.T.copy()), requires_grad=False))
