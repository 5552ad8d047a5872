"""Optimization profiles: for which sizes of each named axis an engine is built, and for which it is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from archcalc.config import positive
from export.files import ExportError
from export.tracing import BATCH, POSITIONS, SOURCE, TOKENS

DECODE, PREFILL = 0, 1  # in the order in which they are added
TUNED_PROMPT = 512  # tokens; a longer prompt is allowed for, but kernels are chosen for this
TUNED_SOURCE = 128  # tokens of an encoder's source
BOUNDS = ("minShapes", "optShapes", "maxShapes")  # trtexec's names, in a range's order

Range = tuple[int, int, int]  # least, tuned for, most
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]  # by one of `BOUNDS`, the shape of each input by name


def input_axes(graph: Path) -> dict[str, tuple[int | str, ...]]:
    """The axes of each input of an ONNX file: a size, or the name of one that is free."""
    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {i.name: tuple(a.dim_param or a.dim_value for a in i.type.tensor_type.shape.dim) for i in inputs}


def profiles(
    capacity: int,
    max_batch: int,
    max_prompt: int,
    shapes: Shapes | None = None,
    axes: Mapping[str, tuple[int | str, ...]] | None = None,
    max_source: int | None = None,
) -> dict[str, dict[str, Range]]:
    """The range of each named axis, for decoding one token and for a prompt of 1..max_prompt tokens.

    Args:
        shapes: of a prompt's inputs; each replaces what the sizes say of its axes. The decode profile follows.
        axes: what the shapes are of, from `input_axes`.
        max_source: tokens of a source, for a decoder that reads one of any length.
    Raises: ExportError or ConfigError for sizes that no cache of `capacity` tokens allows, or that disagree.
    """
    positive(max_batch=max_batch, max_prompt=max_prompt)
    if max_prompt > capacity:
        raise ExportError(f"max_prompt={max_prompt}: more than the cache's capacity={capacity}; give at most that many")
    given = _given(shapes, axes)
    batch = _range(BATCH, (1, 1, max_batch), given)
    tokens = _range(TOKENS, (1, TUNED_PROMPT, max_prompt), given)
    if tokens[2] > capacity:
        raise ExportError(f"maxShapes: {TOKENS}={tokens[2]}, the cache's capacity={capacity}; give at most that many")
    positions, one = _range(POSITIONS, (1, 1, tokens[2]), given), (1, 1, 1)
    source = _source(max_source, given)
    return {
        "decode": {BATCH: batch, TOKENS: one, POSITIONS: one} | source,
        "prefill": {BATCH: batch, TOKENS: tokens, POSITIONS: positions} | source,
    }


def source_profiles(
    max_batch: int,
    max_source: int | None,
    shapes: Shapes | None = None,
    axes: Mapping[str, tuple[int | str, ...]] | None = None,
) -> dict[str, dict[str, Range]]:
    """The range of each named axis of an encoder. Args: max_source: tokens of a source; None where that is fixed.

    Raises: ExportError or ConfigError for sizes that disagree, or more than `max_source` tokens.
    """
    positive(max_batch=max_batch)
    given = _given(shapes, axes)
    return {"source": {BATCH: _range(BATCH, (1, 1, max_batch), given)} | _source(max_source, given)}


def _source(max_source: int | None, given: list[dict[str, int]]) -> dict[str, Range]:
    if max_source is None:
        return {}
    positive(max_source=max_source)
    return {SOURCE: _range(SOURCE, (1, TUNED_SOURCE, max_source), given)}


def _given(shapes: Shapes | None, axes: Mapping[str, tuple[int | str, ...]] | None) -> list[dict[str, int]]:
    """What the shapes say of each named axis, for each bound."""
    return [_sizes(bound, (shapes or {}).get(bound, {}), axes or {}) for bound in BOUNDS]


def _sizes(bound: str, shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[int | str, ...]]):
    """{named axis: size} of the shapes given for one bound, which must agree with the graph and with each other."""
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        text = f"{bound}={name}:{'x'.join(map(str, shape))}"
        if name not in axes:
            raise ExportError(f"{text}: the graph has no such input; give some of {', '.join(axes)}")
        if len(shape) != len(axes[name]):
            raise ExportError(f"{text}: {name} has the axes {list(axes[name])}; give a size for each")
        for axis, size in zip(axes[name], shape, strict=True):
            wanted = found.setdefault(axis, size) if isinstance(axis, str) else axis
            if size != wanted:
                raise ExportError(f"{text}: axis {axis} is {wanted} elsewhere, {size} here; give one size")
    return found


def _range(axis: str, default: Range, given: list[dict[str, int]]) -> Range:
    """The axis's range: what is given of it, else the default, tuned for a size inside of it."""
    least, tuned, most = (sizes.get(axis) for sizes in given)
    least, most = least or default[0], most or default[2]
    tuned = tuned or min(max(default[1], least), most)
    if not 1 <= least <= tuned <= most:
        raise ExportError(
            f"{axis}: minShapes={least}, optShapes={tuned}, maxShapes={most} are not in order; "
            "give sizes from 1 with min <= opt <= max"
        )
    return least, tuned, most


def add_profile(builder, network, settings, ranges: dict[str, Range]) -> None:
    """Add the profile of these ranges: the shape of every input follows from its named axes.

    Raises: ExportError for a free axis that has no range.
    """
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        sizes: list[Range] = []
        for index, size in enumerate(tensor.shape):
            name = tensor.get_dimension_name(index)
            if size < 0 and name not in ranges:
                raise ExportError(f"{tensor.name}: the axis {name!r} has no range; this graph has no profiles yet")
            sizes.append(ranges[name] if size < 0 else (size, size, size))
        profile.set_shape(tensor.name, *zip(*sizes, strict=True))
    settings.add_optimization_profile(profile)
