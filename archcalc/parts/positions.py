"""Rotary positions: they own nothing and count nothing, but two models that differ in them are not the same."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.errors import ConfigError, one_of


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts (counts do not depend on it).

    Source: Llama 3.1's published config (`llama3`); Chen et al. 2023, arXiv:2306.15595 (`linear`); Peng et al.
    2023, arXiv:2309.00071 (`yarn`, `dynamic`); Ding et al. 2024, arXiv:2402.13753 (`longrope`).

    Args:
        beta_fast, beta_slow: yarn: pairs that turn more often than this in the original context stay as they are, and
            those that turn less are stretched. truncate: those limits are whole pairs.
        attention_factor: what queries and keys are multiplied by each; None: as the paper derives it of the factor.
        long_factor, short_factor: longrope: the stretch of each pair, beyond and within the original context.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    long_factor: tuple[float, ...] = ()
    short_factor: tuple[float, ...] = ()

    def __post_init__(self):
        kinds = ("linear", "llama3", "yarn", "dynamic", "longrope", "proportional")
        one_of("rope_scaling.rope_type", self.rope_type, kinds)
        if not self.factor >= 1:
            raise ConfigError(f"rope_scaling.factor={self.factor!r}: must be at least 1; remove rope_scaling for none")
        for name in ("beta_fast", "beta_slow", "attention_factor"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"rope_scaling.{name}={value!r}: must be a positive number; remove it for the usual")
        lists = self.long_factor, self.short_factor
        if len(lists[0]) != len(lists[1]) or not all(value > 0 for values in lists for value in values):
            raise ConfigError("rope_scaling.long_factor with short_factor: a positive number for each pair; fix them")


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of queries and keys. Source: arXiv:2104.09864.

    Args:
        partial_rotary_factor: the share of the head that is turned.
        interleaved: neighbours are a pair, not the halves of the head.
    """

    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    interleaved: bool = False

    def __post_init__(self):
        if not 0 < self.rope_theta < float("inf"):
            raise ConfigError(f"rope_theta={self.rope_theta!r}: must be a positive number; 10000.0 is usual")
        share = self.partial_rotary_factor
        if not 0 < share <= 1:
            raise ConfigError(f"partial_rotary_factor={share!r}: must lie in (0, 1]; remove it for the whole head")

    @property
    def short_context(self) -> int | None:
        """The context within which other factors hold than beyond it (longrope); None where all contexts are alike."""
        scaling = self.rope_scaling
        return scaling.original_max_position_embeddings if scaling and scaling.rope_type == "longrope" else None
