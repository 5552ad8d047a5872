"""What depends on positions alone: rotary tables, sinusoids, biases by distance, masks. No parameters, no state.

A position below 0 is padding in front of a sequence: nothing sees it, and it sees itself alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from archcalc.config import RopeScaling, Rotary


class Context(NamedTuple):
    """What a layer gets beside its input: positions, and what follows from them.

    Args:
        position_ids_BT: never below 0. cos_MP, sin_MP: rotary tables; None in a layer without.
        mask_B1TS: True where a query sees a key. bias_BNTS: added to the scores; None for nothing.
        present_BT: False where a token is padding; what has a state instead of a mask needs it.
        first_values: empty until the first attention of the pass puts its values [B, T, K, U] there; shared by all.
        value_shares_2: how much of a layer's own values and of those first ones it uses; None for its own alone.
        cross_k_BKXH, cross_v_BKXH, cross_mask_B1TX: the source, in a layer with cross-attention.
    """

    position_ids_BT: torch.Tensor
    mask_B1TS: torch.Tensor | None = None
    cos_MP: torch.Tensor | None = None
    sin_MP: torch.Tensor | None = None
    bias_BNTS: torch.Tensor | None = None
    present_BT: torch.Tensor | None = None
    first_values: list | None = None
    value_shares_2: torch.Tensor | None = None
    cross_k_BKXH: torch.Tensor | None = None
    cross_v_BKXH: torch.Tensor | None = None
    cross_mask_B1TX: torch.Tensor | None = None


def rotary_frequencies(rotary: Rotary, head_dim: int, length: int, device="cpu") -> torch.Tensor:
    """Radians a token of each pair that is turned, [P], highest first.

    Args:
        length: tokens to be served; only `longrope` depends on it.
    Source: arXiv:2104.09864; `linear` arXiv:2306.15595; `longrope` arXiv:2402.13753; `llama3` Llama 3.1's published
    config: waves that fit `high_freq_factor` times into the original context stay, those that fit less than
    `low_freq_factor` times are stretched by `factor`, those between are blended.
    """
    turned = int(head_dim * rotary.partial_rotary_factor)
    exponents_P = torch.arange(0, turned, 2, dtype=torch.float32, device=device) / turned
    frequencies_P = 1.0 / rotary.rope_theta**exponents_P
    scaling = rotary.rope_scaling
    if scaling is None:
        return frequencies_P
    if scaling.rope_type == "linear":
        return frequencies_P / scaling.factor
    if scaling.rope_type == "longrope":
        long = length > scaling.original_max_position_embeddings
        return frequencies_P / torch.tensor(scaling.long_factor if long else scaling.short_factor, device=device)
    if scaling.rope_type == "yarn":
        keep_P = _yarn_keeps(scaling, rotary.rope_theta, turned, device)
    else:
        waves_P = scaling.original_max_position_embeddings * frequencies_P / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep_P = ((waves_P - low) / (high - low)).clamp(0, 1)
    return frequencies_P * (keep_P + (1 - keep_P) / scaling.factor)


def _yarn_keeps(scaling: RopeScaling, theta: float, turned: int, device) -> torch.Tensor:
    """The share of each pair's frequency that is not stretched, [P]. Source: arXiv:2309.00071, section 3.2."""

    def pair(turns: float) -> float:
        """The pair that turns so often within the original context."""
        return (
            turned * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))
        )

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    pairs_P = torch.arange(turned // 2, dtype=torch.float32, device=device)
    return 1 - ((pairs_P - low) / max(high - low, 1e-3)).clamp(0, 1)


def rotary_tables(rotary: Rotary, head_dim: int, length: int, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of each position's angles, two fp32 tensors [length, P]."""
    positions_M = torch.arange(length, dtype=torch.float32, device=device)
    angles_MP = torch.outer(positions_M, rotary_frequencies(rotary, head_dim, length, device))
    factor = _attention_factor(rotary.rope_scaling) if rotary.rope_scaling else 1.0
    return angles_MP.cos() * factor, angles_MP.sin() * factor


def _attention_factor(scaling: RopeScaling) -> float:
    """What queries and keys are multiplied by each. Source: arXiv:2309.00071, section 3.3; arXiv:2402.13753."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.rope_type == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    if scaling.rope_type == "longrope" and scaling.factor > 1:
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position_embeddings))
    return 1.0


def sinusoids(position_ids_BT: torch.Tensor, hidden_size: int, halves: bool = False) -> torch.Tensor:
    """Position vectors [B, T, D] in fp32: sin at even, cos at odd indices, or all sines first (`halves`).

    Source: Vaswani et al. 2017, section 3.5.
    """
    exponents = torch.arange(0, hidden_size, 2, dtype=torch.float32, device=position_ids_BT.device) / hidden_size
    angles = position_ids_BT[..., None].float() / 10000.0**exponents
    waves = angles.sin(), angles.cos()
    return torch.cat(waves, dim=-1) if halves else torch.stack(waves, dim=-1).flatten(-2)


def alibi(ahead_BTS: torch.Tensor, heads: int) -> torch.Tensor:
    """A penalty that grows with the distance, by its own slope in each head: [B, N, T, S].

    Source: Press et al. 2021, arXiv:2108.12409; between two powers of two, every other slope of the next is taken.
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (n + 1) / whole) for n in range(whole)]
    slopes += [2 ** (-4 * (n + 1) / whole) for n in range(0, 2 * (heads - whole), 2)]
    return ahead_BTS[:, None] * torch.tensor(slopes, device=ahead_BTS.device)[:, None, None]


def distance_buckets(ahead_BTS: torch.Tensor, buckets: int, max_distance: int, causal: bool) -> torch.Tensor:
    """The bucket of each (query, key) pair: one a token nearby, then wider and wider ones. Int64 [B, T, S].

    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1.
    """
    after_BTS = torch.zeros_like(ahead_BTS)
    if not causal:
        buckets //= 2
        after_BTS = (ahead_BTS > 0) * buckets
    distance_BTS = (-ahead_BTS).clamp(min=0) if causal else ahead_BTS.abs()
    near = buckets // 2
    far_BTS = torch.log(distance_BTS.clamp(min=1).float() / near) / math.log(max_distance / near) * (buckets - near)
    far_BTS = (near + far_BTS.long()).clamp(max=buckets - 1)
    return after_BTS + torch.where(distance_BTS < near, distance_BTS, far_BTS)


def causal_mask(
    position_ids_BT: torch.Tensor, key_positions_BS: torch.Tensor, window=None, chunk=None, padded: bool = False
) -> torch.Tensor:
    """True where a query sees a key: not after it; at most W - 1 before it; in its chunk. [B, 1, T, S]

    Where there may be padding (`padded`), nothing sees it but itself, for softmax of nothing is NaN.
    """
    query_BT1, key_B1S = position_ids_BT[:, :, None], key_positions_BS[:, None, :]
    visible_BTS = key_B1S <= query_BT1
    if window is not None:
        visible_BTS = visible_BTS & (key_B1S > query_BT1 - window)
    if chunk is not None:
        visible_BTS = visible_BTS & (key_B1S // chunk == query_BT1 // chunk)
    if padded:
        visible_BTS = visible_BTS & ((key_B1S >= 0) | (key_B1S == query_BT1))
    return visible_BTS[:, None]


def padding_mask(present_BS: torch.Tensor, tokens: int) -> torch.Tensor:
    """True where a key is no padding, for each of T queries. [B, 1, T, S]

    A row that is all padding sees all of it: what comes out means nothing, but is no NaN (softmax of nothing is).
    """
    present_BS = present_BS.bool()
    visible_BS = present_BS | ~present_BS.any(-1, keepdim=True)
    return visible_BS[:, None, None, :].expand(-1, 1, tokens, -1)
