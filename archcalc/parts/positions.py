"""Rotary positions: they own nothing and count nothing, but two models that differ in them are not the same."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import ConfigError, one_of


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts (counts do not depend on it).

    Source: Llama 3.1's published config (`llama3`); Chen et al. 2023, arXiv:2306.15595 (`linear`); Peng et al.
    2023, arXiv:2309.00071 (`yarn`, `dynamic`); Ding et al. 2024, arXiv:2402.13753 (`longrope`). Of the last
    three only the factor is kept.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self):
        kinds = ("linear", "llama3", "yarn", "dynamic", "longrope", "proportional")
        one_of("rope_scaling.rope_type", self.rope_type, kinds)
        if not self.factor >= 1:
            raise ConfigError(f"rope_scaling.factor={self.factor!r}: must be at least 1; remove rope_scaling for none")


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of queries and keys. Source: arXiv:2104.09864.

    Args:
        partial_rotary_factor: the share of the head that is turned.
    """

    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0

    def __post_init__(self):
        if not 0 < self.rope_theta < float("inf"):
            raise ConfigError(f"rope_theta={self.rope_theta!r}: must be a positive number; 10000.0 is usual")
        share = self.partial_rotary_factor
        if not 0 < share <= 1:
            raise ConfigError(f"partial_rotary_factor={share!r}: must lie in (0, 1]; remove it for the whole head")
