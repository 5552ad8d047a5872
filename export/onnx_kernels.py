"""The four kernels of `models.kernels.Eager` as one ONNX operator each (opset 24).

They have no eager meaning: tracing with them puts the operator into the graph, and `verify` compares what
the graph computes with what `Eager` does. Source: ONNX operator specifications of RMSNormalization (23),
RotaryEmbedding (23), TensorScatter (24) and Attention (24).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

OPSET = 24


def _operator(name: str, inputs: list, like: torch.Tensor, **attributes) -> torch.Tensor:
    return torch.onnx.ops.symbolic(
        name, inputs, attributes, dtype=like.dtype, shape=like.shape, version=OPSET, metadata_props={}
    )


class OnnxKernels:
    """Drop-in for `Eager` while a model is traced; same shapes."""

    @staticmethod
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)  # the exporter keeps it whole

    @staticmethod
    def rotary(x_BTNH, cos_MP, sin_MP, position_ids_BT) -> torch.Tensor:
        heads = x_BTNH.shape[2]
        turned = torch.onnx.ops.rotary_embedding(x_BTNH.flatten(2), cos_MP, sin_MP, position_ids_BT, num_heads=heads)
        return turned.unflatten(-1, (heads, -1))

    @staticmethod
    def cache_write(cache_BKCH, new_BKTH, write_indices_B) -> torch.Tensor:
        return _operator("TensorScatter", [cache_BKCH, new_BKTH, write_indices_B], cache_BKCH, axis=-2, mode="linear")

    @staticmethod
    def attend(q_BNTH, k_BKSH, v_BKSH, mask_B1TS, scale=None, softcap=None, bias_BNTS=None, sinks_N=None):
        assert bias_BNTS is None and sinks_N is None, "check_exportable refuses these"
        chosen = {name: value for name, value in (("scale", scale), ("softcap", softcap)) if value is not None}
        return _operator("Attention", [q_BNTH, k_BKSH, v_BKSH, mask_B1TS], q_BNTH, **chosen)
