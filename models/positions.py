"""What depends on positions alone: rotary tables, sinusoids and masks. No parameters, no state."""

from __future__ import annotations

import math

import torch

from archcalc.config import Rotary


def rotary_frequencies(rotary: Rotary, head_dim: int, device="cpu") -> torch.Tensor:
    """Radians a token of each pair of a head, [H/2], highest first.

    Source: arXiv:2104.09864; `linear` arXiv:2306.15595; `llama3` Llama 3.1's published config: waves that fit
    `high_freq_factor` times into the original context stay, those that fit less than `low_freq_factor` times are
    stretched by `factor`, those between are blended.
    """
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies_P = 1.0 / rotary.rope_theta**exponents_P
    scaling = rotary.rope_scaling
    if scaling is None:
        return frequencies_P
    if scaling.rope_type == "linear":
        return frequencies_P / scaling.factor
    waves_P = scaling.original_max_position_embeddings * frequencies_P / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep_P = ((waves_P - low) / (high - low)).clamp(0, 1)
    return frequencies_P * (keep_P + (1 - keep_P) / scaling.factor)


def rotary_tables(rotary: Rotary, head_dim: int, length: int, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of each position's angles, two fp32 tensors [length, H/2]."""
    positions_M = torch.arange(length, dtype=torch.float32, device=device)
    angles_MP = torch.outer(positions_M, rotary_frequencies(rotary, head_dim, device))
    return angles_MP.cos(), angles_MP.sin()


def sinusoids(position_ids_BT: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """Position vectors [B, T, D] in fp32: sin at even, cos at odd indices.

    Source: Vaswani et al. 2017, section 3.5.
    """
    exponents = torch.arange(0, hidden_size, 2, dtype=torch.float32, device=position_ids_BT.device) / hidden_size
    angles = position_ids_BT[..., None].float() / 10000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def causal_mask(position_ids_BT: torch.Tensor, key_positions_BS: torch.Tensor, window: int | None) -> torch.Tensor:
    """True where a query sees a key: not after it and, with a window W, at most W - 1 before it. [B, 1, T, S]"""
    ahead_BTS = key_positions_BS[:, None, :] - position_ids_BT[:, :, None]
    visible_BTS = ahead_BTS <= 0
    if window is not None:
        visible_BTS = visible_BTS & (ahead_BTS > -window)
    return visible_BTS[:, None]


def padding_mask(present_BS: torch.Tensor, tokens: int) -> torch.Tensor:
    """True where a key is no padding, for each of T queries. [B, 1, T, S]

    A row that is all padding sees all of it: what comes out means nothing, but is no NaN (softmax of nothing is).
    """
    present_BS = present_BS.bool()
    visible_BS = present_BS | ~present_BS.any(-1, keepdim=True)
    return visible_BS[:, None, None, :].expand(-1, 1, tokens, -1)
