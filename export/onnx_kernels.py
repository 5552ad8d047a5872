"""The five kernels of `models.kernels.Eager` as one ONNX operator each (opset 24).

They have no eager meaning: tracing with them puts the operator into the graph, and `verify` compares what
the graph computes with what `Eager` does. Source: ONNX operator specifications of RMSNormalization (23),
RotaryEmbedding (23), TensorScatter (24) and Attention (24).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan

from models.kernels import Eager

OPSET = 24


def _operator(name: str, inputs: list, like: torch.Tensor, shape=None, **attributes) -> torch.Tensor:
    return torch.onnx.ops.symbolic(
        name, inputs, attributes, dtype=like.dtype, shape=shape or like.shape, version=OPSET, metadata_props={}
    )


def _attention(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, bias_BNTS, **given: float | None) -> torch.Tensor:
    if bias_BNTS is not None:  # the operator takes a mask or numbers to add
        mask_B1TS = torch.where(mask_B1TS, bias_BNTS, float("-inf")).to(q_BNTH.dtype)
    chosen = {name: value for name, value in given.items() if value is not None}
    shape = (*q_BNTH.shape[:3], v_BKSU.shape[-1])
    return _operator("Attention", [q_BNTH, k_BKSH, v_BKSU, mask_B1TS], q_BNTH, shape, **chosen)


class OnnxKernels:
    """Drop-in for `Eager` while a model is traced; same shapes."""

    @staticmethod
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        kind = torch.promote_types(x.dtype, weight.dtype)  # the operator takes one type and gives it
        wide, weight = x.to(kind), weight.to(kind)
        if weight.shape != x.shape[-1:]:  # one weight, or one for each of several groups
            return (F.rms_norm(wide, x.shape[-1:], None, eps) * weight).to(x.dtype)
        return F.rms_norm(wide, x.shape[-1:], weight, eps).to(x.dtype)  # the exporter keeps it whole

    @staticmethod
    def rotary(x_BTNH, cos_MP, sin_MP, position_ids_BT) -> torch.Tensor:
        # As [B, N, T, H], which attention wants too: the second transposition meets its inverse and both go.
        return torch.onnx.ops.rotary_embedding(x_BTNH.transpose(1, 2), cos_MP, sin_MP, position_ids_BT).transpose(1, 2)

    @staticmethod
    def cache_write(cache_BKCH, new_BKTH, write_indices_B) -> torch.Tensor:
        return _operator("TensorScatter", [cache_BKCH, new_BKTH, write_indices_B], cache_BKCH, axis=-2, mode="linear")

    @staticmethod
    def attend(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, scale=None, softcap=None, bias_BNTS=None, sinks_N=None):
        # The operator has no score beside those of the keys; TensorRT's has no softcap, and one width for both.
        if sinks_N is not None or softcap is not None or k_BKSH.shape[-1] != v_BKSU.shape[-1]:
            return Eager.attend(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, scale, softcap, bias_BNTS, sinks_N)
        return _attention(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, bias_BNTS, scale=scale)

    @staticmethod
    def scan(step, state, inputs_BT):
        return scan(lambda kept, inputs_B: step(kept, *inputs_B), state, inputs_BT, dim=1)


class WholeSoftcap(OnnxKernels):
    """The same where one runtime is asked for, whose attention has a softcap."""

    @staticmethod
    def attend(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, scale=None, softcap=None, bias_BNTS=None, sinks_N=None):
        if softcap is None or sinks_N is not None:
            return OnnxKernels.attend(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, scale, softcap, bias_BNTS, sinks_N)
        return _attention(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, bias_BNTS, scale=scale, softcap=softcap)


def experts(x_tD: torch.Tensor, shares_tA: torch.Tensor, chosen_tA: torch.Tensor) -> torch.Tensor:
    """In place of `MixtureOfExperts.routed` while a block is traced: a call that `export.mixture` fills in."""
    return torch.onnx.ops.symbolic(
        "archcalc::Experts", [x_tD, shares_tA, chosen_tA], {}, dtype=x_tD.dtype, shape=x_tD.shape, version=1
    )
