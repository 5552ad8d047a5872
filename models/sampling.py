"""From logits to the next token: the likeliest, or one drawn at random from the likely ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from archcalc.errors import ArchcalcError, ConfigError


def likeliest(logits_BV: torch.Tensor) -> torch.Tensor:
    """The most probable token of each row, [B]; the smallest id where two are equal."""
    return logits_BV.argmax(-1)


def top_k_only(logits_BV: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest logits of each row, -inf in place of the others. Source: Fan et al. 2018, arXiv:1805.04833."""
    values_Bk, ids_Bk = logits_BV.topk(min(k, logits_BV.shape[-1]))
    return torch.full_like(logits_BV, -math.inf).scatter(-1, ids_Bk, values_Bk)


def top_p_only(logits_BV: torch.Tensor, p: float) -> torch.Tensor:
    """The logits of the fewest tokens whose probabilities sum to at least p, -inf in place of the others.

    Source: Holtzman et al. 2020, arXiv:1904.09751, "nucleus sampling".
    """
    sorted_BV, ids_BV = logits_BV.sort(descending=True, stable=True)
    probabilities_BV = sorted_BV.softmax(-1)
    before_BV = probabilities_BV.cumsum(-1) - probabilities_BV  # what is reached without this token
    kept_BV = sorted_BV.masked_fill(before_BV >= p, -math.inf)
    return torch.empty_like(logits_BV).scatter(-1, ids_BV, kept_BV)


@dataclass
class Sampler:
    """Draws tokens at random: temperature, then top-k, then top-p. The same seed and logits give the same tokens.

    Args:
        temperature: logits are divided by it; 0 is the likeliest token, 1 the model's own distribution.
        top_k: only so many tokens can be drawn. top_p: only the fewest that reach this probability, above 0 to 1.
        seed: of the generator, 0 to 2^63 - 1. It is the CPU's wherever the model runs.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self):
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature={self.temperature}: must be 0 or more; 0 is greedy, 1 changes nothing")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: must be 1 or more; leave it out to draw from all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: must be above 0 and at most 1, which leaves no token out")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed}: must be from 0 to 2^63 - 1")
        self._generator = torch.Generator().manual_seed(self.seed)

    def probabilities(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """What each token is drawn with, [B, V], in fp64 on the CPU."""
        logits_BV = logits_BV.cpu().double()
        if not logits_BV.isfinite().all():
            raise ArchcalcError("logits: not finite, so there is nothing to draw from; are the weights whole?")
        logits_BV = logits_BV - logits_BV.max(-1, keepdim=True).values  # 0 stays 0, however cold
        logits_BV = logits_BV / self.temperature
        if self.top_k is not None:
            logits_BV = top_k_only(logits_BV, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits_BV = top_p_only(logits_BV, self.top_p)
        return logits_BV.softmax(-1)

    def __call__(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """The next token of each row, [B]. Raises: ArchcalcError for logits that are not finite."""
        if self.temperature == 0:
            return likeliest(logits_BV)
        drawn_B1 = self.probabilities(logits_BV).multinomial(1, generator=self._generator)
        return drawn_B1[:, 0].to(logits_BV.device)
