"""LayerNorm and RMSNorm."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config


class RMSNorm(nn.Module):
    """x / rms(x) * (offset + weight) over the last axis, by `kernels.rms_norm`. Parameters: D. FLOPs: 0.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, norm: config.Norm, size: int, kernels):
        super().__init__()
        self.config, self.kernels = norm, kernels
        self.weight = nn.Parameter(torch.ones(size)) if norm.weight else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones_like(x[..., :1]) if self.weight is None else self.weight
        if self.config.offset:
            weight = weight.float() + self.config.offset  # around 1, a half-precision sum would lose the weight
        return self.kernels.rms_norm(x, weight, self.config.eps)


def norm_from_config(norm: config.Norm, size: int, kernels) -> nn.Module:
    """The module of a `Norm` over so many channels: RMSNorm (weight) or LayerNorm (weight and bias)."""
    if norm.kind == "rmsnorm":
        return RMSNorm(norm, size, kernels)
    return nn.LayerNorm(size, eps=norm.eps, elementwise_affine=norm.weight, bias=norm.bias)
