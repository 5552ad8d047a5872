"""From logits to the next token: the likeliest, or one drawn at random from the likely ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from archcalc.errors import ArchcalcError, ConfigError


def likeliest(logits_BV: torch.Tensor) -> torch.Tensor:
    """The most probable token of each row, [B]; the smallest id where two are equal."""
    return logits_BV.argmax(-1)


def nucleus(weights_BC: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """The fewest tokens of each row that have the share p of its weights together.

    Returns: their weights and their columns, [B, N] each, heaviest first; a weight of 0 where a row needs fewer than N.
    Source: Holtzman et al. 2020, arXiv:1904.09751, "nucleus sampling".
    """
    total_B1 = weights_BC.sum(-1, keepdims=True)
    # All tokens with less than (1 - p) / C have less than 1 - p together: the nucleus is among the few others.
    columns_N = (weights_BC >= total_B1 * ((1 - p) / weights_BC.shape[-1])).any(0).nonzero()[0]
    order_BN = (-weights_BC[:, columns_N]).argsort(-1, kind="stable")
    ids_BN = columns_N[order_BN]
    sorted_BN = np.take_along_axis(weights_BC, ids_BN, -1)
    before_BN = sorted_BN.cumsum(-1) - sorted_BN  # what is reached without this token
    return np.where(before_BN < p * total_B1, sorted_BN, 0), ids_BN


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
        ids_BC, weights_BC = self._weights(logits_BV)
        probabilities_BV = np.zeros(logits_BV.shape)
        np.put_along_axis(probabilities_BV, ids_BC, weights_BC / weights_BC.sum(-1, keepdims=True), -1)
        return torch.from_numpy(probabilities_BV)

    def _weights(self, logits_BV: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Ids that can be drawn and their probabilities but for a factor of each row, [B, C] each.

        In numpy: after a pass of a model, which leaves nothing in the processor's caches, it starts faster than torch.
        """
        logits_BV = logits_BV.detach().to("cpu", torch.promote_types(logits_BV.dtype, torch.float32))
        values_BC = logits_BV.numpy()
        most_B1 = values_BC.max(-1, keepdims=True)
        if not (math.isfinite(most_B1.max()) and math.isfinite(values_BC.min())):  # NaN is either's result
            raise ArchcalcError("logits: not finite, so there is nothing to draw from; are the weights whole?")
        if self.top_k is None:
            ids_BC = np.broadcast_to(np.arange(logits_BV.shape[-1]), logits_BV.shape)
        else:  # Source: Fan et al. 2018, arXiv:1805.04833
            ids_BC = np.sort(logits_BV.topk(min(self.top_k, logits_BV.shape[-1])).indices.numpy(), -1)
            values_BC = np.take_along_axis(values_BC, ids_BC, -1)
        with np.errstate(over="ignore"):  # to -inf, where it is very cold; the largest stays 0
            weights_BC = np.exp(np.subtract(values_BC, most_B1, dtype=np.float64) / self.temperature)
        if self.top_p is not None and self.top_p < 1:
            weights_BC, columns_BC = nucleus(weights_BC, self.top_p)
            ids_BC = np.take_along_axis(ids_BC, columns_BC, -1)
        return ids_BC, weights_BC

    def __call__(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """The next token of each row, [B]: where one uniform number falls among the probabilities, laid end to end.

        Raises: ArchcalcError for logits that are not finite.
        """
        if self.temperature == 0:
            return likeliest(logits_BV)
        ids_BC, weights_BC = self._weights(logits_BV)
        ends_BC = weights_BC.cumsum(-1)
        uniform_B1 = torch.rand(len(ends_BC), 1, dtype=torch.float64, generator=self._generator).numpy()
        first_B1 = (ends_BC > uniform_B1 * ends_BC[:, -1:]).argmax(-1, keepdims=True)  # never a weight of 0
        return torch.from_numpy(np.take_along_axis(ids_BC, first_B1, -1)[:, 0]).to(logits_BV.device)
