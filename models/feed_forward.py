"""The feed-forward of a block: two matrices, three when gated, or a mixture of experts."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from archcalc import config

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """(act(x·gate) * x·up)·down, or act(x·up)·down where it is not gated: [B, T, D] to [B, T, D].

    Parameters: 3·D·F. FLOPs: 6·B·T·D·F. Without a gate, 2 and 4.
    Source: Shazeer 2020, arXiv:2002.05202; the cut form arXiv:2508.10925.
    """

    def __init__(self, feed_forward: config.FeedForward, hidden_size: int):
        super().__init__()
        mlp = self.config = feed_forward
        size, bias = mlp.intermediate_size, mlp.bias
        self.act = ACTIVATIONS[mlp.hidden_act]
        self.gate_proj = nn.Linear(hidden_size, size, bias=bias) if mlp.gated else None
        self.up_proj = nn.Linear(hidden_size, size, bias=bias)
        self.down_proj = nn.Linear(size, hidden_size, bias=bias if mlp.down_bias is None else mlp.down_bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.act(self.up_proj(x_BTD)))
        gate, up, limit = self.gate_proj(x_BTD), self.up_proj(x_BTD), self.config.swiglu_limit
        if limit is None:
            return self.down_proj(self.act(gate) * up)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return self.down_proj((up + 1) * ACTIVATIONS["quick_gelu"](gate))


class MixtureOfExperts(nn.Module):
    """Each token goes to the A of E experts that the router likes best, weighted by what the router makes of them.

    Parameters: D·E + 3·E·D·F + 3·D·f. FLOPs: 2·B·T·D·E + 6·B·T·A·D·F + 6·B·T·D·f. f is the shared expert's width.
    Source: Jiang et al. 2024, arXiv:2401.04088; sigmoids, groups and the bias that only chooses: DeepSeek-AI 2024,
    arXiv:2412.19437, section 2.1.2.
    """

    def __init__(self, mixture: config.MixtureOfExperts, hidden_size: int):
        super().__init__()
        moe = self.config = mixture
        self.router = nn.Linear(hidden_size, moe.num_local_experts, bias=moe.router_bias)
        self.register_buffer("correction_bias", torch.zeros(moe.num_local_experts) if moe.correction_bias else None)
        self.experts = nn.ModuleList(FeedForward(moe.expert, hidden_size) for _ in range(moe.num_local_experts))
        self.shared_expert = FeedForward(moe.shared, hidden_size) if moe.shared else None
        self.shared_expert_gate = nn.Linear(hidden_size, 1, bias=False) if moe.shared_gate else None

    def route(self, x_tD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The share of each chosen expert and its number, [t, A] each, of t tokens."""
        moe, bias_E = self.config, self.router.bias
        # In fp32: in half precision, near-equal experts change places, and with them the whole output of a token.
        logits_tE = F.linear(x_tD.float(), self.router.weight.float(), None if bias_E is None else bias_E.float())
        scores_tE = logits_tE.sigmoid() if moe.scoring == "sigmoid" else logits_tE.softmax(dim=-1)
        liked_tE = scores_tE if self.correction_bias is None else scores_tE + self.correction_bias
        if moe.n_group > 1:
            liked_tgE = liked_tE.unflatten(-1, (moe.n_group, -1))
            best_tG = liked_tgE.topk(2, dim=-1).values.sum(-1).topk(moe.topk_group, dim=-1).indices
            other_tg = torch.ones_like(liked_tgE[..., 0], dtype=torch.bool).scatter(1, best_tG, False)
            liked_tE = liked_tgE.masked_fill(other_tg[..., None], float("-inf")).flatten(1)
        chosen_tA = liked_tE.topk(moe.num_experts_per_tok, dim=-1).indices
        shares_tA = scores_tE.gather(1, chosen_tA)
        if moe.norm_topk_prob:
            shares_tA = shares_tA / shares_tA.sum(-1, keepdim=True)
        return (shares_tA * moe.routed_scaling_factor).to(x_tD.dtype), chosen_tA

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_tD = x_BTD.flatten(0, 1)
        y_BTD = self.routed(x_tD, *self.route(x_tD)).reshape(x_BTD.shape)
        if self.shared_expert is not None:
            gate = 1 if self.shared_expert_gate is None else self.shared_expert_gate(x_BTD).sigmoid()
            y_BTD = y_BTD + gate * self.shared_expert(x_BTD)
        return y_BTD

    def routed(self, x_tD: torch.Tensor, shares_tA: torch.Tensor, chosen_tA: torch.Tensor) -> torch.Tensor:
        """What the chosen experts make of their tokens, in shares: [t, D]."""
        y_tD = torch.zeros_like(x_tD)
        for index, expert in enumerate(self.experts):
            # An expert computes its own tokens only, so counted FLOPs are those of the active parameters.
            tokens, place = (chosen_tA == index).nonzero(as_tuple=True)
            y_tD = y_tD.index_add(0, tokens, expert(x_tD[tokens]) * shares_tA[tokens, place, None])
        return y_tD


def feed_forward_from_config(mlp: config.FeedForward | config.MixtureOfExperts, hidden_size: int) -> nn.Module:
    """The module of a block's `mlp`."""
    return (MixtureOfExperts if isinstance(mlp, config.MixtureOfExperts) else FeedForward)(mlp, hidden_size)
