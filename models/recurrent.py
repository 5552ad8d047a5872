"""Mixers with a state of fixed size, written as the recurrences that they are: one step a token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from archcalc import config
from models.cache import Past, shapes
from models.norm import norm_from_config
from models.positions import Context


class Convolution(nn.Module):
    """A depthwise convolution of x channels over a token and the k - 1 before it, then silu: [B, T, x] to [B, T, x]."""

    def __init__(self, channels: int, taps: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, x_BTx: torch.Tensor, state_Bxk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(what comes out [B, T, x], the last k inputs [B, x, k])."""
        known_Bxt = torch.cat((state_Bxk[..., 1:].to(x_BTx.dtype), x_BTx.transpose(1, 2)), dim=-1)
        y_BxT = F.conv1d(known_Bxt, self.weight[:, None], self.bias, groups=len(self.weight))
        first = state_Bxk[..., :1].to(x_BTx.dtype)
        return F.silu(y_BxT).transpose(1, 2), torch.cat((first, known_Bxt), dim=-1)[..., -self.weight.shape[1] :]


class Recurrent(nn.Module):
    """Projections, a convolution over some of them, then `_steps`, the recurrence."""

    def __init__(self, mixer, parts: dict[str, int], heads: int, conv_bias: bool, bias: bool, hidden_size: int):
        super().__init__()
        self.config = mixer
        self.in_proj = nn.ModuleDict({name: nn.Linear(hidden_size, size, bias=bias) for name, size in parts.items()})
        self.conv1d = Convolution(mixer.dims["x"], mixer.dims["k"], conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))

    def forward(self, x_BTD: torch.Tensor, context: Context, past: Past | None = None) -> torch.Tensor:
        """T steps from the past state on, or from an empty one: [B, T, D]. Padding in front leaves it empty."""
        conv, state = past.tensors if past else (x_BTD.new_zeros(shape) for shape in shapes(self.config, len(x_BTD), 0))
        here_BT1 = torch.ones_like(x_BTD[..., :1]) if context.present_BT is None else context.present_BT[..., None]
        made = {name: project(x_BTD) for name, project in self.in_proj.items()}
        mixed = [made.pop(name) for name in self.convolved]
        mixed_BTx, conv = self.conv1d(torch.cat(mixed, dim=-1) * here_BT1, conv)
        sizes = [part.shape[-1] for part in mixed]
        made |= dict(zip(self.convolved, (mixed_BTx * here_BT1).split(sizes, dim=-1), strict=True))
        y_BTx, state = self._steps(made, state.float())
        if past:
            past.tensors = conv.to(past.tensors[0].dtype), state.to(past.tensors[1].dtype)
        return self.out_proj(y_BTx.to(x_BTD.dtype))


class Mamba2(Recurrent):
    """state = exp(dt·A)·state + dt·x⊗b; y = state·c + D·x, then normed behind a gate.

    Parameters: D·g·(2·r·u + 2·n + r) + x·k + x + 3·g·r + g·r·u + g·r·u·D. x is g·r·u + 2·g·n.
    FLOPs: 2·B·T·D·g·(3·r·u + 2·n + r) + 2·B·T·x·k + 4·B·T·g·r·u·n.
    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.
    """

    convolved = ("x", "b", "c")

    def __init__(self, mixer: config.Mamba2, hidden_size: int, kernels):
        m, inner, shared = mixer, mixer.num_heads * mixer.head_dim, mixer.n_groups * mixer.state_size
        parts = {"z": inner, "x": inner, "b": shared, "c": shared, "dt": m.num_heads}
        super().__init__(m, parts, m.num_heads, m.conv_bias, m.bias, hidden_size)
        self.D = nn.Parameter(torch.empty(m.num_heads))
        self.norm = norm_from_config(m.norm, inner, kernels) if m.norm else None
        self.kernels, self.norm_width = kernels, inner // (m.n_groups if m.norm_per_group else 1)
        self.out_proj = nn.Linear(inner, hidden_size, bias=m.bias if m.out_bias is None else m.out_bias)

    def _steps(self, made: dict, state_Bhun: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = self.config
        x_BThu = made["x"].unflatten(-1, (m.num_heads, m.head_dim)).float()
        b_BThn, c_BThn = (
            made[name].unflatten(-1, (m.n_groups, -1)).repeat_interleave(m.num_heads // m.n_groups, dim=2).float()
            for name in "bc"
        )
        dt_BTh = F.softplus(made["dt"].float() + self.dt_bias.float()).clamp(*m.time_step_limit)
        decay_BTh = (-self.A_log.float().exp() * dt_BTh).exp()

        def step(state_Bhun, x_Bhu, b_Bhn, c_Bhn, dt_Bh, decay_Bh):
            new_Bhun = (dt_Bh[..., None] * x_Bhu)[..., None] @ b_Bhn[:, :, None]
            state_Bhun = decay_Bh[..., None, None] * state_Bhun + new_Bhun
            return state_Bhun, (state_Bhun @ c_Bhn[..., None])[..., 0]

        state_Bhun, y_BThu = self.kernels.scan(step, state_Bhun, (x_BThu, b_BThn, c_BThn, dt_BTh, decay_BTh))
        y_BThu = y_BThu + self.D.float()[:, None] * x_BThu
        return self._gated(y_BThu.flatten(2), made["z"]), state_Bhun

    def _gated(self, y_BTx: torch.Tensor, z_BTx: torch.Tensor) -> torch.Tensor:
        y_BTx = y_BTx * F.silu(z_BTx.float())
        if self.norm is None:
            return y_BTx
        groups = y_BTx.unflatten(-1, (-1, self.norm_width))
        weight = self.norm.weight.unflatten(0, (-1, self.norm_width))
        return self.kernels.rms_norm(groups, weight, self.config.norm.eps).flatten(2)


class GatedDeltaNet(Recurrent):
    """state = g·state + k⊗(beta·(v - (g·state)·k)); y = state·q, then normed a head and gated.

    Parameters: D·i·(2·j + 2·r·u + 2·r) + x·k + 2·i·r + u + i·r·u·D. x is 2·i·j + i·r·u.
    FLOPs: 2·B·T·D·i·(2·j + 3·r·u + 2·r) + 2·B·T·x·k + 6·B·T·i·j·r·u.
    Source: Yang et al. 2024, arXiv:2412.06464.
    """

    convolved = ("q", "k", "v")

    def __init__(self, mixer: config.GatedDeltaNet, hidden_size: int, kernels):
        keys = mixer.linear_num_key_heads * mixer.linear_key_head_dim
        heads, width = mixer.linear_num_value_heads, mixer.linear_value_head_dim
        parts = {"q": keys, "k": keys, "v": heads * width, "z": heads * width, "b": heads, "a": heads}
        super().__init__(mixer, parts, heads, False, False, hidden_size)
        self.kernels, self.norm = kernels, norm_from_config(mixer.norm, width, kernels)
        self.out_proj = nn.Linear(heads * width, hidden_size, bias=False)

    def _steps(self, made: dict, state_Bhju: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m, heads = self.config, self.config.linear_num_value_heads
        q_BThj, k_BThj = (
            _unit(made[name].unflatten(-1, (m.linear_num_key_heads, -1)).float()).repeat_interleave(
                heads // m.linear_num_key_heads, dim=2
            )
            for name in "qk"
        )
        q_BThj = q_BThj * m.linear_key_head_dim**-0.5
        v_BThu, beta_BTh = made["v"].unflatten(-1, (heads, -1)).float(), made["b"].float().sigmoid()
        decay_BTh = (-self.A_log.float().exp() * F.softplus(made["a"].float() + self.dt_bias.float())).exp()

        def step(state_Bhju, q_Bhj, k_Bhj, v_Bhu, beta_Bh, decay_Bh):
            state_Bhju = decay_Bh[..., None, None] * state_Bhju
            error_Bh1u = beta_Bh[..., None, None] * (v_Bhu[:, :, None] - k_Bhj[:, :, None] @ state_Bhju)
            state_Bhju = state_Bhju + k_Bhj[..., None] @ error_Bh1u
            return state_Bhju, (q_Bhj[:, :, None] @ state_Bhju)[:, :, 0]

        state_Bhju, y_BThu = self.kernels.scan(step, state_Bhju, (q_BThj, k_BThj, v_BThu, beta_BTh, decay_BTh))
        y_BThu = self.norm(y_BThu) * F.silu(made["z"].unflatten(-1, (heads, -1)).float())
        return y_BThu.flatten(2), state_Bhju


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
