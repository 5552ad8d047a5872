"""Multi-head latent attention. Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config
from models.attention import turned
from models.cache import Past
from models.norm import norm_from_config
from models.positions import Context


class LatentAttention(nn.Module):
    """Keys and values of all heads from one latent [J] and one rotary key [Q] a token, which are all that is kept.

    `form`: `expanded` makes the keys and values of all S tokens; `absorbed` moves the queries into the latent space.
    Parameters: C·D + C + C·N·(P + Q) + D·(J + Q) + J + J·N·(P + U) + D·N·U. Without `q_lora_rank`, C is D.
    FLOPs: 2·B·T·(C·D + C·N·(P + Q) + D·(J + Q) + J·N·(P + U) + D·N·U) + 2·B·T·S·N·(2·J + Q). That is absorbed.
    """

    def __init__(self, attention: config.LatentAttention, hidden_size: int, kernels):
        super().__init__()
        a = self.config = attention
        self.kernels, heads, source = kernels, a.num_attention_heads, hidden_size
        if a.q_lora_rank:
            self.q_a_proj = nn.Linear(hidden_size, a.q_lora_rank, bias=a.bias)
            self.q_a_norm = norm_from_config(a.norm, a.q_lora_rank, kernels)
            source = a.q_lora_rank
        queries = {"nope": heads * a.qk_nope_head_dim, "rope": heads * a.qk_rope_head_dim}
        kept = {"latent": a.kv_lora_rank, "rope": a.qk_rope_head_dim}
        self.q_b_proj = nn.ModuleDict({name: nn.Linear(source, size, bias=False) for name, size in queries.items()})
        self.kv_a_proj = nn.ModuleDict({name: nn.Linear(hidden_size, size, bias=a.bias) for name, size in kept.items()})
        self.kv_a_norm = norm_from_config(a.norm, a.kv_lora_rank, kernels)
        self.k_b_proj = nn.Linear(a.kv_lora_rank, heads * a.qk_nope_head_dim, bias=False)
        self.v_b_proj = nn.Linear(a.kv_lora_rank, heads * a.v_head_dim, bias=False)
        self.o_proj = nn.Linear(heads * a.v_head_dim, hidden_size, bias=a.bias)
        self.scale = a.scale or (a.qk_nope_head_dim + a.qk_rope_head_dim) ** -0.5

    def forward(self, x_BTD: torch.Tensor, context: Context, past: Past | None = None) -> torch.Tensor:
        """Self-attention of T tokens to themselves and to the past: [B, T, D]."""
        heads = (self.config.num_attention_heads, -1)
        source_BTC = self.q_a_norm(self.q_a_proj(x_BTD)) if self.config.q_lora_rank else x_BTD
        nope_BTNP, rope_BTNQ = (self.q_b_proj[name](source_BTC).unflatten(-1, heads) for name in ("nope", "rope"))
        rope_BTNQ = turned(rope_BTNQ, context, self.kernels)
        latent_B1TJ = self.kv_a_norm(self.kv_a_proj["latent"](x_BTD))[:, None]
        key_B1TQ = turned(self.kv_a_proj["rope"](x_BTD)[:, :, None], context, self.kernels).transpose(1, 2)
        kept = past.append(latent_B1TJ, key_B1TQ) if past else (latent_B1TJ, key_B1TQ)
        attend = self._absorbed if self.config.form == "absorbed" else self._expanded
        return self.o_proj(attend(nope_BTNP, rope_BTNQ, *kept, context.mask_B1TS).flatten(2))

    def _expanded(self, nope_BTNP, rope_BTNQ, latent_B1SJ, key_B1SQ, mask_B1TS) -> torch.Tensor:
        heads = (self.config.num_attention_heads, -1)
        both = self.k_b_proj(latent_B1SJ[:, 0]), self.v_b_proj(latent_B1SJ[:, 0])
        k_BNSP, v_BNSU = (made.unflatten(-1, heads).transpose(1, 2) for made in both)
        q_BNTH = torch.cat((nope_BTNP, rope_BTNQ), dim=-1).transpose(1, 2)
        k_BNSH = torch.cat((k_BNSP, key_B1SQ.expand(-1, k_BNSP.shape[1], -1, -1)), dim=-1)
        return self.kernels.attend(q_BNTH, k_BNSH, v_BNSU, mask_B1TS, self.scale).transpose(1, 2)

    def _absorbed(self, nope_BTNP, rope_BTNQ, latent_B1SJ, key_B1SQ, mask_B1TS) -> torch.Tensor:
        heads = (self.config.num_attention_heads, -1)
        k_NPJ, v_NUJ = (project.weight.unflatten(0, heads) for project in (self.k_b_proj, self.v_b_proj))
        q_BNTJ = nope_BTNP.transpose(1, 2) @ k_NPJ
        q_BNTx = torch.cat((q_BNTJ, rope_BTNQ.transpose(1, 2)), dim=-1)
        k_B1Sx = torch.cat((latent_B1SJ, key_B1SQ), dim=-1)
        y_BNTJ = self.kernels.attend(q_BNTx, k_B1Sx, latent_B1SJ, mask_B1TS, self.scale)
        return (y_BNTJ @ v_NUJ.transpose(1, 2)).transpose(1, 2)
