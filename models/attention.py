"""Multi-head, grouped-query and multi-query attention; self and cross; with and without a cache."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config


class Attention(nn.Module):
    """Projections around `kernels.attend`. Source: arXiv:1706.03762, section 3.2; arXiv:2305.13245."""

    def __init__(self, attention: config.Attention, hidden_size: int, kernels):
        super().__init__()
        self.config, self.kernels = attention, kernels
        q_size = attention.num_attention_heads * attention.head_dim
        kv_size = attention.num_key_value_heads * attention.head_dim
        self.q_proj = nn.Linear(hidden_size, q_size, bias=attention.q_bias)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=attention.k_bias)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=attention.v_bias)
        self.o_proj = nn.Linear(q_size, hidden_size, bias=attention.o_bias)

    def _heads(self, x_BTx: torch.Tensor) -> torch.Tensor:
        return x_BTx.unflatten(-1, (-1, self.config.head_dim))

    def _output(self, q_BNTH, k_BKSH, v_BKSH, mask_B1TS) -> torch.Tensor:
        y_BNTH = self.kernels.attend(q_BNTH, k_BKSH, v_BKSH, mask_B1TS)
        return self.o_proj(y_BNTH.transpose(1, 2).flatten(2))

    def forward(
        self, x_BTD, cache_k_BKCH, cache_v_BKCH, cos_MP, sin_MP, position_ids_BT, write_indices_B, mask_B1TS
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Self-attention. Returns the output [B, T, D] and the keys and values that were attended to.

        With a cache those are the whole of it, this pass's tokens written in; without (None), this pass's only.
        """
        q_BTNH, k_BTKH = self._heads(self.q_proj(x_BTD)), self._heads(self.k_proj(x_BTD))
        if self.config.rotary is not None:
            q_BTNH = self.kernels.rotary(q_BTNH, cos_MP, sin_MP, position_ids_BT)
            k_BTKH = self.kernels.rotary(k_BTKH, cos_MP, sin_MP, position_ids_BT)
        k_BKSH, v_BKSH = k_BTKH.transpose(1, 2), self._heads(self.v_proj(x_BTD)).transpose(1, 2)
        if cache_k_BKCH is not None:
            k_BKSH = self.kernels.cache_write(cache_k_BKCH, k_BKSH, write_indices_B)
            v_BKSH = self.kernels.cache_write(cache_v_BKCH, v_BKSH, write_indices_B)
        return self._output(q_BTNH.transpose(1, 2), k_BKSH, v_BKSH, mask_B1TS), k_BKSH, v_BKSH

    def keys_values(self, source_BXD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-attention's keys and values [B, K, X, H], to be computed once a source."""
        k_BKXH = self._heads(self.k_proj(source_BXD)).transpose(1, 2)
        return k_BKXH, self._heads(self.v_proj(source_BXD)).transpose(1, 2)

    def cross(self, x_BTD, k_BKXH, v_BKXH, mask_B1TX) -> torch.Tensor:
        """Cross-attention of T target tokens to X source tokens, [B, T, D]."""
        return self._output(self._heads(self.q_proj(x_BTD)).transpose(1, 2), k_BKXH, v_BKXH, mask_B1TX)
