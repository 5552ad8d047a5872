"""A transformer block: attention (or two) and a feed-forward, each with a norm and a residual."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config
from models.attention import Attention
from models.feed_forward import feed_forward_from_config


class RMSNorm(nn.Module):
    """`kernels.rms_norm` with its weight [D]."""

    def __init__(self, hidden_size: int, eps: float, kernels):
        super().__init__()
        self.eps, self.kernels = eps, kernels
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)


def norm_from_config(norm: config.Norm, hidden_size: int, kernels) -> nn.Module:
    """The module of a `Norm`: RMSNorm (weight) or LayerNorm (weight and bias)."""
    if norm.kind == "rmsnorm":
        return RMSNorm(hidden_size, norm.eps, kernels)
    return nn.LayerNorm(hidden_size, eps=norm.eps)


class Block(nn.Module):
    """Self-attention, cross-attention where there is one, feed-forward. Tensors in, tensors out: no state.

    Source: arXiv:1706.03762 (norm after the residual), Xiong et al. 2020, arXiv:2002.04745 (norm before).
    """

    def __init__(self, block: config.Block, hidden_size: int, kernels):
        super().__init__()
        self.pre = block.norm_placement == "pre"
        self.self_attn = Attention(block.self_attn, hidden_size, kernels)
        self.self_attn_norm = norm_from_config(block.norm, hidden_size, kernels)
        self.cross_attn = Attention(block.cross_attn, hidden_size, kernels) if block.cross_attn else None
        self.cross_attn_norm = norm_from_config(block.norm, hidden_size, kernels) if block.cross_attn else None
        self.mlp = feed_forward_from_config(block.mlp, hidden_size)
        self.mlp_norm = norm_from_config(block.norm, hidden_size, kernels)

    def forward(
        self,
        x_BTD: torch.Tensor,
        cache_k_BKCH: torch.Tensor | None,
        cache_v_BKCH: torch.Tensor | None,
        cos_MP: torch.Tensor | None,
        sin_MP: torch.Tensor | None,
        position_ids_BT: torch.Tensor,
        write_indices_B: torch.Tensor | None,
        mask_B1TS: torch.Tensor,
        cross_k_BKXH: torch.Tensor | None = None,
        cross_v_BKXH: torch.Tensor | None = None,
        cross_mask_B1TX: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One pass over T tokens.

        Args:
            cache_k_BKCH, cache_v_BKCH: the past, C slots (then S = C); None to attend to this pass alone (S = T).
            cos_MP, sin_MP: rotary tables, None in a model without.
            write_indices_B: first slot that each row's tokens are written to; None without a cache.
            mask_B1TS: True where a query sees a key.
        Returns: the output [B, T, D], and the keys and values that were attended to, [B, K, S, H].
        """
        y_BTD, k_BKSH, v_BKSH = self.self_attn(
            self._before(self.self_attn_norm, x_BTD),
            *(cache_k_BKCH, cache_v_BKCH, cos_MP, sin_MP, position_ids_BT, write_indices_B, mask_B1TS),
        )
        x_BTD = self._after(self.self_attn_norm, x_BTD, y_BTD)
        if self.cross_attn is not None:
            query_BTD = self._before(self.cross_attn_norm, x_BTD)
            y_BTD = self.cross_attn.cross(query_BTD, cross_k_BKXH, cross_v_BKXH, cross_mask_B1TX)
            x_BTD = self._after(self.cross_attn_norm, x_BTD, y_BTD)
        y_BTD = self.mlp(self._before(self.mlp_norm, x_BTD))
        return self._after(self.mlp_norm, x_BTD, y_BTD), k_BKSH, v_BKSH

    def _before(self, norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return norm(x) if self.pre else x

    def _after(self, norm: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if self.pre else norm(x + y)
