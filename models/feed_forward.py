"""The feed-forward of a block: two matrices, three when gated, or a mixture of experts."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from archcalc import config

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu}


class FeedForward(nn.Module):
    """act(x·up)·down, or gated (act(x·gate) * x·up)·down. Source: Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, feed_forward: config.FeedForward, hidden_size: int):
        super().__init__()
        size, bias = feed_forward.intermediate_size, feed_forward.bias
        self.act = ACTIVATIONS[feed_forward.hidden_act]
        self.gate_proj = nn.Linear(hidden_size, size, bias=bias) if feed_forward.gated else None
        self.up_proj = nn.Linear(hidden_size, size, bias=bias)
        self.down_proj = nn.Linear(size, hidden_size, bias=bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.act(self.up_proj(x_BTD)))
        return self.down_proj(self.act(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class MixtureOfExperts(nn.Module):
    """Each token goes to the A experts that the router likes best, weighted by its softmax over those A.

    Source: Jiang et al. 2024, arXiv:2401.04088, section 2.1.
    """

    def __init__(self, mixture: config.MixtureOfExperts, hidden_size: int):
        super().__init__()
        self.num_experts_per_tok = mixture.num_experts_per_tok
        self.router = nn.Linear(hidden_size, mixture.num_local_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(mixture.expert, hidden_size) for _ in range(mixture.num_local_experts))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_tD = x_BTD.flatten(0, 1)
        shares_tE = self.router(x_tD).softmax(dim=-1, dtype=torch.float32)
        shares_tA, chosen_tA = shares_tE.topk(self.num_experts_per_tok, dim=-1)
        shares_tA = (shares_tA / shares_tA.sum(-1, keepdim=True)).to(x_tD.dtype)
        y_tD = torch.zeros_like(x_tD)
        for index, expert in enumerate(self.experts):
            # An expert computes its own tokens only, so counted FLOPs are those of the active parameters.
            tokens, place = (chosen_tA == index).nonzero(as_tuple=True)
            y_tD = y_tD.index_add(0, tokens, expert(x_tD[tokens]) * shares_tA[tokens, place, None])
        return y_tD.reshape(x_BTD.shape)


def feed_forward_from_config(mlp: config.FeedForward | config.MixtureOfExperts, hidden_size: int) -> nn.Module:
    """The module of a block's `mlp`."""
    kind = MixtureOfExperts if isinstance(mlp, config.MixtureOfExperts) else FeedForward
    return kind(mlp, hidden_size)
