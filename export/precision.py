"""Export precisions: formats of weights and of activations, what stays higher, and how far a build may stray.

Activations, cache, embeddings, norms, biases, softmax and routers have the activations' format. Where weights are
quantized, the matrices of the blocks and the head are: in groups along the axis that is summed over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import torch
from onnx import TensorProto

from archcalc.errors import ConfigError, one_of
from archcalc.precision import Precision, precision


@dataclass(frozen=True)
class Quantization:
    """Symmetric integers of `bits` with a scale for each `group_size` of them; `head_bits` for the head's matrix.

    `dynamic`: a scale a column instead of groups, and activations rounded to 8 bits, a scale a pass, before products.
    """

    bits: int
    head_bits: int
    group_size: int = 32
    dynamic: bool = False


@dataclass(frozen=True)
class ExportPrecision:
    """`tolerance` bounds |engine - PyTorch fp32| of any logit, relative to the largest |logit| of fp32.

    PyTorch has the build's weights: quantized ones are given to it as the numbers that they stand for.
    """

    name: str
    activations: str
    torch: torch.dtype
    numpy: np.dtype
    onnx: int
    tolerance: float
    reason: str
    largest: float
    quantization: Quantization | None = None


FORMATS = {
    "fp32": ExportPrecision(
        "fp32",
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
        "fp16",
        torch.float16,
        np.dtype(np.float16),
        TensorProto.FLOAT16,
        3e-2,
        "each sublayer rounds the residual stream to 2^-11 of its largest channel; sixty in a row add up to 60/2^11",
        65504.0,
    ),
    "bf16": ExportPrecision(
        "bf16",
        "bf16",
        torch.bfloat16,
        np.dtype(ml_dtypes.bfloat16),
        TensorProto.BFLOAT16,
        0.24,
        "as fp16 with 2^-8 for 2^-11: 60/2^8",
        float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
    ),
}
# What ONNX Runtime's products with integers cost, on top of the weights' own rounding.
ROUNDED = 0.25
ROUNDED_REASON = (
    "products round activations to 1/254 of their group's largest: an eighth of the others where one of 32 is as large "
    "as they are together, and as much again over the layers"
)
QUANTIZED = {
    "int8": Quantization(8, 8),
    "int8-dynamic": Quantization(8, 8, dynamic=True),
    "int4": Quantization(4, 8),
}
PRECISIONS = (*FORMATS, *QUANTIZED)
GROUP_SIZES = (16, 32, 64, 128, 256)  # of MatMulNBits, ONNX Runtime's product with grouped weights


def export_precision(name: str, activations: str | None = None, group_size: int | None = None) -> ExportPrecision:
    """A precision by name.

    Args:
        activations: fp32 (default), fp16 or bf16, where weights are quantized; else the weights' own format.
        group_size: weights that share a scale (32), where weights are quantized in groups.
    Raises: ConfigError naming the known ones.
    """
    one_of("precision", name, PRECISIONS)
    scheme = QUANTIZED.get(name)
    if scheme is None:
        for key, value in (("activations", activations), ("group_size", group_size)):
            if value not in (None, name):
                raise ConfigError(f"{key}={value}: {name} weights are not quantized; give it with int8 or int4")
        return FORMATS[name]
    one_of("activations", activations or "fp32", FORMATS)
    form = FORMATS[activations or "fp32"]
    if scheme.dynamic and (form.name != "fp32" or group_size):
        raise ConfigError(f"precision={name}: products in int8 come out in fp32, a scale a column; give neither option")
    if group_size is not None:
        if group_size not in GROUP_SIZES:
            raise ConfigError(f"group_size={group_size}: not one of {', '.join(map(str, GROUP_SIZES))}")
        scheme = replace(scheme, group_size=group_size)
    made = replace(form, name=name, quantization=scheme)
    return rounded(made) if scheme.dynamic else made


def rounded(kind: ExportPrecision) -> ExportPrecision:
    """The precision as it is where products round their activations to 8 bits."""
    return replace(kind, tolerance=max(kind.tolerance, ROUNDED), reason=ROUNDED_REASON)


def number_format(kind: ExportPrecision) -> Precision:
    """What the calculator knows a precision as; a weight's share of its scale counts as bits of it."""
    if kind.quantization is None:
        return precision(kind.name)
    scheme, size = kind.quantization, kind.numpy.itemsize
    shared = 0 if scheme.dynamic else -(-8 * size // scheme.group_size)
    return replace(precision(f"int{scheme.bits}"), bits=scheme.bits + shared, activation_bytes=size)


def kept_higher(kind: ExportPrecision) -> str:
    """What is in which format, in words."""
    form, scheme = kind.activations, kind.quantization
    wider = "" if form == "fp32" else "; norms and routers compute in fp32"
    if scheme is None:
        return f"everything in {form}{wider}"
    scales = "a scale a column" if scheme.dynamic else f"a scale for each {scheme.group_size} weights"
    head = f", the head int{scheme.head_bits}" if scheme.head_bits != scheme.bits else ""
    rest = "embeddings, norms, biases, routers, activations and cache"
    return f"matrices of the blocks int{scheme.bits}{head}, {scales}; {rest} in {form}{wider}"
