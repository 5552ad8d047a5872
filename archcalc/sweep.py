"""One pass of many requests at once: the same op list over numpy arrays of batch and context.

Arrays are float64: FLOPs soon exceed 64-bit integers. Every sum here adds whole, non-negative numbers, so a count
is exactly the integer of a report while it is below 2^53 (9.0e15); above, it is right to about 15 digits.
The only module that imports numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archcalc.config import ModelConfig
from archcalc.cost import Pass, bound, cache_elements, check_request, costs, passes
from archcalc.dims import Algebra
from archcalc.errors import ConfigError, one_of
from archcalc.hardware import Device, device
from archcalc.ops import Cost
from archcalc.precision import Precision, precision

ARRAYS = Algebra(np.minimum, np.maximum, lambda even: even / 2)
EXACT_BELOW = 2**53  # every whole number below it is a float64
CHUNK = 1 << 14  # points at once: a dozen arrays of them stay in a core's cache


class Points(NamedTuple):
    """Of each model (first axis) and request (the other axes): counts, bytes, and seconds at the roofline."""

    flops: np.ndarray
    bytes: np.ndarray
    kv_bytes: np.ndarray
    seconds: np.ndarray


class Setting(NamedTuple):
    """What all points have in common; see `sweep`."""

    run: str
    source: int
    device: Device
    weights: Precision
    cache: Precision
    dense: bool
    last_logits: bool


def sweep(
    configs: ModelConfig | Sequence[ModelConfig],
    batch,
    context,
    *,
    run: str = "decode",
    source: int = 1024,
    device_name: str = "h100-sxm",
    weights: str = "bf16",
    kv_cache: str = "bf16",
    dense: bool = False,
    last_logits: bool = False,
) -> Points:
    """Cost of a pass at every point.

    Args:
        configs: one model or several.
        batch, context: whole numbers or integer arrays, broadcast against each other; B, and S in tokens.
        run: `decode`, one token that attends over `context`; or the `first` pass, whose input is `context`
            tokens: a decoder-only model's prefill, the encode of a model with an encoder.
        source: source tokens that an encoder-decoder's decode step reads.
        device_name: whose peaks the seconds have.
        weights, kv_cache: number formats, as `report --precision` and `--kv-precision`.
        dense: count every (query, key) pair, also masked ones.
        last_logits: the first pass makes logits of its last position only.
    Returns:
        arrays of shape [models, ...the broadcast shape]. The first pass leaves `kv_bytes` of its own tokens.
    Raises:
        ConfigError: a size that is no request, a context beyond learned positions, an unknown name.
    """
    one_of("run", run, ("decode", "first"))
    models = [configs] if isinstance(configs, ModelConfig) else list(configs)
    formats = precision(weights), precision(kv_cache)
    setting = Setting(run, source, device(device_name), *formats, dense, last_logits)
    batches, contexts = np.broadcast_arrays(_whole("batch", batch), _whole("context", context))
    shape, flat_batches, flat_contexts = batches.shape, batches.reshape(-1), contexts.reshape(-1)
    out = Points(*(np.empty((len(models), flat_batches.size)) for _ in Points._fields))
    for row, config in enumerate(models):
        _check(config, flat_batches, flat_contexts, setting)
        for start in range(0, flat_batches.size, CHUNK):
            part = slice(start, start + CHUNK)
            found = _points(config, flat_batches[part].astype(float), flat_contexts[part].astype(float), setting)
            for column, values in zip(out, found, strict=True):
                column[row, part] = values
    return Points(*(column.reshape(len(models), *shape) for column in out))


def _whole(name: str, values) -> np.ndarray:
    found = np.asarray(values)
    if not np.issubdtype(found.dtype, np.integer):
        raise ConfigError(f"{name}: {found.dtype} is no type of whole numbers; give integers")
    return found


def _check(config: ModelConfig, batches: np.ndarray, contexts: np.ndarray, setting: Setting) -> None:
    """The checks of a report, at the smallest and the largest request."""
    if setting.run == "decode" and not config.decoder:
        raise ConfigError("run='decode': a model without a decoder has none; give run='first'")
    for edge in (np.min, np.max) if batches.size else ():
        batch, context = int(edge(batches)), int(edge(contexts))
        check_request(config, batch, context if setting.run == "first" else setting.source, context)


def _points(config: ModelConfig, batch: np.ndarray, context: np.ndarray, setting: Setting) -> tuple:
    """The columns of `Points` of one model and chunk."""
    prompt = context if setting.run == "first" else setting.source
    runs = passes(config, batch, prompt, context, setting.last_logits)
    flops, moved, seconds = _roofline(runs[-1 if setting.run == "decode" else 0], setting)
    own, cross, _ = cache_elements(bound(config)[1], batch, context, config.source_tokens(prompt), ARRAYS)
    kept = own + cross
    if setting.run == "first" and config.encoder:
        kept = cross  # no token of the decoder yet
    return flops, moved, _stored(kept, setting.cache), seconds


def _roofline(chosen: Pass, setting: Setting) -> tuple:
    """(FLOPs, bytes, seconds): sums over ops, as `roofline.roofline`."""
    rate, bandwidth = setting.device.rate(setting.weights.rate), setting.device.bytes_per_second
    flops = moved = seconds = 0
    for line, cost in zip(chosen.bound.lines, costs(chosen, setting.dense, ARRAYS), strict=True):
        bytes_ = _traffic(cost, setting.weights, setting.cache)
        flops = flops + line.count * cost.flops
        seconds = seconds + line.count * np.maximum(cost.flops / rate, bytes_ / bandwidth)
        moved = moved + line.count * bytes_
    return flops, moved, seconds


def _traffic(cost: Cost, weights: Precision, cache: Precision) -> np.ndarray:
    """`roofline.traffic` of arrays, without floor division, which would take most of the time."""
    moved = _stored(cost.weights_read, weights) + weights.activation_bytes * cost.activations
    return moved + _stored(cost.cache_read + cost.cache_written, cache)


def _stored(elements, kind: Precision):
    """`Precision.stored_bytes` of an array."""
    return elements * (kind.bits // 8) if kind.bits % 8 == 0 else np.ceil(elements * kind.bits / 8)
