"""A transformer block: a mixer, cross-attention where there is one, a feed-forward, each with norms and a residual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from archcalc import config
from models.attention import Attention
from models.cache import Past
from models.feed_forward import feed_forward_from_config
from models.latent import LatentAttention
from models.norm import norm_from_config
from models.positions import Context
from models.recurrent import GatedDeltaNet, Mamba2

MIXERS = {one.__name__: one for one in (Attention, LatentAttention, Mamba2, GatedDeltaNet)}
BEFORE, AFTER = ("pre", "post", "sandwich"), ("inner", "sandwich")


class Numbers(nn.Module):
    """A few learned numbers [n]."""

    def __init__(self, count: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count))


class Block(nn.Module):
    """Tensors in, tensors out; what is kept of a past is changed in place.

    Its parts have the parameters; a norm adds D, a LayerNorm 2·D.
    Source: arXiv:1706.03762 (norm after the residual), Xiong et al. 2020, arXiv:2002.04745 (norm before), Wang et al.
    2022, arXiv:2203.00555 (alpha), Wang and Komatsuzaki 2021 (parallel).
    """

    def __init__(self, block: config.Block, hidden_size: int, kernels):
        super().__init__()
        self.config, parts = block, {}
        self.value_residual = Numbers(2) if block.residual.value_residual else None
        self.skip = Numbers(1) if block.residual.skip else None
        if mixer := block.self_attn:
            parts[mixer.module] = MIXERS[type(mixer).__name__](mixer, hidden_size, kernels)
        if block.cross_attn:
            parts["cross_attn"] = Attention(block.cross_attn, hidden_size, kernels)
        if block.mlp:
            parts["mlp"] = feed_forward_from_config(block.mlp, hidden_size)
        for name, part in parts.items():
            self.add_module(name, part)
            if block.norm_placement in BEFORE and not (name == "mlp" and block.parallel == "shared"):
                self.add_module(f"{name}_norm", norm_from_config(block.norm, hidden_size, kernels))
            if block.norm_placement in AFTER:
                self.add_module(f"{name}_post_norm", norm_from_config(block.norm, hidden_size, kernels))

    def forward(self, x_BTD: torch.Tensor, context: Context, past: Past | None = None) -> torch.Tensor:
        """One pass over T tokens, [B, T, D].

        Args:
            past: what the layer keeps; this pass is added to it. None to see this pass alone.
        """
        mixer = self._modules.get(self.config.self_attn.module) if self.config.self_attn else None
        if self.value_residual is not None:
            context = context._replace(value_shares_2=self.value_residual.weight)
        if self.config.parallel:
            return self._parallel(x_BTD, mixer, context, past)
        if mixer:
            x_BTD = self._around(self.config.self_attn.module, x_BTD, lambda x: mixer(x, context, past))
        if self.config.cross_attn:
            x_BTD = self._around("cross_attn", x_BTD, lambda x: self.cross_attn.cross(x, context))
        return self._around("mlp", x_BTD, self.mlp) if self.config.mlp else x_BTD

    def _around(self, name: str, x: torch.Tensor, run: Callable) -> torch.Tensor:
        """A sublayer between its norms, and the residual around it."""
        before, after = self._modules.get(f"{name}_norm"), self._modules.get(f"{name}_post_norm")
        alpha = self.config.residual.alpha
        stream = x if alpha == 1 else alpha * x
        if self.config.norm_placement == "post":
            return before(stream + run(x))
        y = run(before(x) if before else x)
        return stream + (after(y) if after else y)

    def _parallel(self, x_BTD: torch.Tensor, mixer: nn.Module, context: Context, past: Past | None) -> torch.Tensor:
        read = self.self_attn_norm(x_BTD)
        y_BTD = mixer(read, context, past)
        return x_BTD + y_BTD + self.mlp(read if self.config.parallel == "shared" else self.mlp_norm(x_BTD))
