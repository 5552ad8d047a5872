"""Seconds of a pass on a machine whose speed was measured: a law of six parameters over the op list.

    product    ((weight bytes / bandwidth)^p + (FLOPs / rate)^p)^(1/p)    a soft maximum of the roofline's two sides
    attention  FLOPs / rate + cache bytes / bandwidth + elements read by each query head x a + pairs x b
    the rest   activation bytes / bandwidth, and a launch for each op

Every parameter is a property of machine and runtime, never of a model. `export.calibrate` fits them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

from archcalc.cost import Line, Pass, costs
from archcalc.precision import Precision


@dataclass(frozen=True)
class Machine:
    """Fitted speed of one machine with one runtime and precision.

    Args:
        bandwidth: bytes a second at which weights, activations and the cache stream. rate: FLOP/s of matrix products.
        sharpness: p of the soft maximum; 1 adds both sides, infinity takes the larger.
        key_seconds: for each element of a key or value that a query head reads.
        pair_seconds: for each (query head, query, key): mask and softmax.
        launch_seconds: for each op.
    """

    bandwidth: float
    rate: float
    sharpness: float
    key_seconds: float
    pair_seconds: float
    launch_seconds: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def predict(run: Pass, machine: Machine, precision: Precision) -> float:
    """Seconds of a pass. Attention is counted dense: a static cache is multiplied whole, masked or not."""
    seconds = 0.0
    p = machine.sharpness
    for line, cost in zip(run.bound.lines, costs(run, dense=True), strict=True):
        spent = machine.launch_seconds + cost.activations * precision.activation_bytes / machine.bandwidth
        if line.op.mask or "X" in line.op.multiplied:
            # Scores or context: 2·B·N·T·S·H FLOPs over B·N·S·H elements and B·N·T·S pairs; X of a source is as S.
            keys = cost.flops / (2 * run.dims["T"])
            pairs = cost.flops / (2 * _depth(line))
            spent += cost.flops / machine.rate + keys * machine.key_seconds + pairs * machine.pair_seconds
            spent += cost.cache_read * precision.activation_bytes / machine.bandwidth  # kept as it was computed
        elif cost.flops:
            stream = precision.stored_bytes(cost.weights_read) / machine.bandwidth
            multiply = cost.flops / machine.rate
            spent += (stream**p + multiply**p) ** (1 / p)
        seconds += line.count * spent
    return seconds


def _depth(line: Line) -> int:
    """Multiply-adds for each (query head, query, key) of attention's product: the axes that the scores do not have.

    H of attention; of latent attention that of the part which the product is: latent, rotary or value.
    """
    tensors = (*line.op.inputs, line.op.output)
    scores = next(t for t in tensors if "T" in t.axes and ("S" in t.axes or "X" in t.axes))
    return prod(line.dims[axis] for axis in line.op.multiplied if axis not in scores.axes)
