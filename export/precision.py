"""Export precisions: the number format of weights, activations and cache, and how far it may stray from fp32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from onnx import TensorProto

from archcalc.errors import one_of


@dataclass(frozen=True)
class ExportPrecision:
    """`tolerance` bounds |engine - PyTorch fp32| of any logit, relative to the largest |logit| of fp32."""

    name: str
    torch: torch.dtype
    numpy: np.dtype
    onnx: int
    tolerance: float
    reason: str
    largest: float


PRECISIONS = {
    "fp32": ExportPrecision(
        "fp32",
        torch.float32,
        np.dtype(np.float32),
        TensorProto.FLOAT,
        1e-4,
        "sums of up to 10^4 terms in another order: about sqrt(10^4) x 2^-24 a product, some tens of layers deep",
        float(np.finfo(np.float32).max),
    ),
    "fp16": ExportPrecision(
        "fp16",
        torch.float16,
        np.dtype(np.float16),
        TensorProto.FLOAT16,
        3e-2,
        "each sublayer rounds the residual stream to 2^-11 of its largest channel; sixty in a row add up to 60/2^11",
        65504.0,
    ),
}


def export_precision(name: str) -> ExportPrecision:
    """Look a precision up by name. Raises: ConfigError naming the known ones."""
    one_of("precision", name, PRECISIONS)
    return PRECISIONS[name]
