"""Keys and values that are computed once: a decoder's own past, and what it reads from an encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from archcalc.config import ModelConfig
from archcalc.errors import ArchcalcError

Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer


class CacheError(ArchcalcError, ValueError):
    """A cache that cannot be made, or a pass that does not fit into it."""


def nbytes(pairs: Pairs) -> int:
    """Bytes of all keys and values."""
    return sum(tensor.nbytes for pair in pairs for tensor in pair)


@dataclass
class KVCache:
    """Keys and values [B, K, C, H] of each decoder layer; C slots, allocated once, never moved.

    The token at position p is in slot p. Prompts of unequal length are padded on the right: the padding is
    written too, but into slots after the prompt, which `slot <= position` hides and the next tokens overwrite.

    Args:
        length: slots after which nothing has been written; where a pass without `position_ids` starts.
    """

    layers: Pairs
    capacity: int
    length: int = 0

    @classmethod
    def empty(cls, config: ModelConfig, batch: int, capacity: int, dtype=torch.float32, device="cpu") -> KVCache:
        """A cache for `batch` sequences of at most `capacity` tokens.

        Raises: CacheError if the model has no such positions, or is not causal.
        """
        if not 1 <= capacity <= config.max_position_embeddings:
            raise CacheError(
                f"capacity={capacity}: the model has max_position_embeddings={config.max_position_embeddings}; "
                "shorten the prompt or generate fewer tokens"
            )
        attentions = [block.self_attn for block in config.decoder.layers]
        if not all(attention.causal for attention in attentions):
            raise CacheError("causal=False: earlier tokens see later ones, so nothing can be kept; run without a cache")
        shapes = [(batch, a.num_key_value_heads, capacity, a.head_dim) for a in attentions]
        new = {"dtype": dtype, "device": device}
        # Zeros, not empty: what a mask hides is still multiplied, by a weight of 0, and 0 * NaN is NaN.
        return cls([(torch.zeros(shape, **new), torch.zeros(shape, **new)) for shape in shapes], capacity)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return nbytes(self.layers)

    def positions(self, batch: int, tokens: int, device) -> torch.Tensor:
        """The next `tokens` positions of every row, [B, T]."""
        return torch.arange(self.length, self.length + tokens, device=device).expand(batch, tokens)

    def reserve(self, position_ids_BT: torch.Tensor | None, tokens: int) -> None:
        """Take note that a pass writes these positions (None: the next ones). Raises: CacheError if full."""
        end = self.length + tokens
        if position_ids_BT is not None and not position_ids_BT.is_meta:  # a meta tensor has no values to check
            end = int(position_ids_BT[:, 0].max()) + tokens
        if end > self.capacity:
            raise CacheError(
                f"capacity={self.capacity}: full, this pass needs {end} slots; make a KVCache of a larger capacity"
            )
        self.length = end


@dataclass
class CrossCache:
    """Keys and values [B, K, X, H] of each decoder layer's cross-attention, and which source tokens are there."""

    layers: Pairs
    source_mask_BX: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return nbytes(self.layers)
