"""Softmax attention: multi-head, grouped-query and multi-query; self and cross; with and without a past."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config
from models.cache import Past
from models.norm import norm_from_config
from models.positions import Context


def turned(x_BTNH: torch.Tensor, context: Context, kernels) -> torch.Tensor:
    """The first 2·P channels of each head, by rotary positions; the rest as it is. As it is where there are none."""
    if context.cos_MP is None:
        return x_BTNH
    width = 2 * context.cos_MP.shape[-1]
    tables = context.cos_MP, context.sin_MP, context.position_ids_BT
    if width == x_BTNH.shape[-1]:
        return kernels.rotary(x_BTNH, *tables)
    return torch.cat((kernels.rotary(x_BTNH[..., :width], *tables), x_BTNH[..., width:]), dim=-1)


class Attention(nn.Module):
    """Projections around `kernels.attend`: [B, T, D] to [B, T, D].

    Parameters: 2·D·H·(N + K). FLOPs: 4·B·T·D·H·(N + K) + 4·B·T·S·N·H. Biases, norms, gates and sinks come on top.
    Source: arXiv:1706.03762, section 3.2; arXiv:2305.13245; QK-norm arXiv:2010.04245; gates arXiv:2505.06708.
    """

    def __init__(self, attention: config.Attention, hidden_size: int, kernels):
        super().__init__()
        a = self.config = attention
        self.kernels = kernels
        queries, keys = a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
        value_dim = a.v_head_dim or a.head_dim
        self.q_proj = nn.Linear(hidden_size, queries, bias=a.q_bias)
        self.k_proj = nn.Linear(hidden_size, keys, bias=a.k_bias)
        self.v_proj = nn.Linear(hidden_size, a.num_key_value_heads * value_dim, bias=a.v_bias)
        self.o_proj = nn.Linear(a.num_attention_heads * value_dim, hidden_size, bias=a.o_bias)
        sizes = (a.head_dim, a.head_dim) if a.qk_norm_over == "head" else (queries, keys)
        self.q_norm, self.k_norm = (norm_from_config(a.qk_norm, size, kernels) if a.qk_norm else None for size in sizes)
        if a.output_gate:
            gates = a.num_attention_heads * (value_dim if a.output_gate == "element" else 1)
            self.gate_proj = nn.Linear(hidden_size, gates, bias=a.has_gate_bias)
        self.sinks = nn.Parameter(torch.zeros(a.num_attention_heads)) if a.sinks else None
        if a.relative_buckets:
            self.relative_attention_bias = nn.Embedding(a.relative_buckets, a.num_attention_heads)

    def _heads(self, x_BTx: torch.Tensor, heads: int, norm: nn.Module | None = None) -> torch.Tensor:
        """[B, T, heads, H], normed where there is a QK-norm: of each head, or of all of them as one vector."""
        by_head = self.config.qk_norm_over == "head"
        x_BTx = norm(x_BTx) if norm and not by_head else x_BTx
        x_BTNH = x_BTx.unflatten(-1, (heads, -1))
        return norm(x_BTNH) if norm and by_head else x_BTNH

    def _queries(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self._heads(self.q_proj(x_BTD), self.config.num_attention_heads, self.q_norm)

    def _keys_values(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        heads = self.config.num_key_value_heads
        return self._heads(self.k_proj(x_BTD), heads, self.k_norm), self._heads(self.v_proj(x_BTD), heads)

    def _output(self, x_BTD, q_BNTH, k_BKSH, v_BKSU, mask_B1TS, bias_BNTS=None) -> torch.Tensor:
        a = self.config
        y_BNTU = self.kernels.attend(q_BNTH, k_BKSH, v_BKSU, mask_B1TS, a.scale, a.logit_softcap, bias_BNTS, self.sinks)
        y_BTNU = y_BNTU.transpose(1, 2)
        if a.output_gate:
            y_BTNU = y_BTNU * self.gate_proj(x_BTD).sigmoid().unflatten(-1, (a.num_attention_heads, -1))
        return self.o_proj(y_BTNU.flatten(2))

    def forward(self, x_BTD: torch.Tensor, context: Context, past: Past | None = None) -> torch.Tensor:
        """Self-attention of T tokens to themselves and to the past: [B, T, D]."""
        q_BTNH, (k_BTKH, v_BTKU) = self._queries(x_BTD), self._keys_values(x_BTD)
        q_BTNH, k_BTKH = (turned(heads, context, self.kernels) for heads in (q_BTNH, k_BTKH))
        v_BTKU = self._mixed(v_BTKU, context)
        pair = k_BTKH.transpose(1, 2), v_BTKU.transpose(1, 2)
        pair = past.append(*pair) if past else pair
        return self._output(x_BTD, q_BTNH.transpose(1, 2), *pair, context.mask_B1TS, context.bias_BNTS)

    def _mixed(self, v_BTKU: torch.Tensor, context: Context) -> torch.Tensor:
        """Values with a share of the first layer's, in a block with value residual. Source: arXiv:2410.17897."""
        if context.first_values == []:
            context.first_values.append(v_BTKU)
        if context.value_shares_2 is None:
            return v_BTKU
        return context.value_shares_2[0] * v_BTKU + context.value_shares_2[1] * context.first_values[0]

    def keys_values(self, source_BXD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-attention's keys and values [B, K, X, H], to be computed once a source."""
        k_BXKH, v_BXKH = self._keys_values(source_BXD)
        return k_BXKH.transpose(1, 2), v_BXKH.transpose(1, 2)

    def cross(self, x_BTD: torch.Tensor, context: Context) -> torch.Tensor:
        """Cross-attention of T target tokens to X source tokens, [B, T, D]."""
        q_BNTH = self._queries(x_BTD).transpose(1, 2)
        return self._output(x_BTD, q_BNTH, context.cross_k_BKXH, context.cross_v_BKXH, context.cross_mask_B1TX)
