"""What is computed once: a decoder's own past, and what it reads from an encoder."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from archcalc.config import ModelConfig, Recurrent
from archcalc.errors import ArchcalcError
from models.kernels import Eager

Tensors = tuple[torch.Tensor, ...]


class CacheError(ArchcalcError, ValueError):
    """A cache that cannot be made, or a pass that does not fit into it."""


def nbytes(layers: list[Tensors]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensors in layers for tensor in tensors)


@dataclass
class Past:
    """What one layer keeps: keys and values [B, K, C, H], latents [B, 1, C, J], or a recurrent state of fixed size.

    Args:
        write_indices_B: static slots: where each row's new tokens go. None: the tensors grow.
        window: a growing layer keeps so many tokens, the last ones; None for all.
    """

    tensors: Tensors
    write_indices_B: torch.Tensor | None = None
    window: int | None = None
    kernels: type = Eager

    def append(self, *new: torch.Tensor) -> Tensors:
        """Keep the new tokens; return all that this pass may attend to, along the second to last axis."""
        if self.write_indices_B is None:
            every = tuple(torch.cat(pair, dim=-2) for pair in zip(self.tensors, new, strict=True))
            self.tensors = tuple(t[..., -self.window :, :] for t in every) if self.window else every
            return every
        pairs = zip(self.tensors, new, strict=True)
        self.tensors = tuple(self.kernels.cache_write(old, one, self.write_indices_B) for old, one in pairs)
        return self.tensors


@dataclass
class Cache:
    """The past of every decoder layer.

    Static: C slots a layer, allocated once, never moved, the form that an engine has. Growing: as many tokens as there
    were, in a layer with a sliding window no more than that. The token at position p of a row is in slot p, or p + the
    padding in front of that row, which the first pass shows by positions below 0.
    Prompts may also be padded behind, if `position_ids` of the next pass say where each row goes on: the padding is
    overwritten. A recurrent state cannot take that back, so there padding must be in front.

    Args:
        capacity: slots; None if it grows. limit: positions that the model has.
        length: slots after which nothing has been written.
        start_B: padding in front of each row.
    """

    layers: list[Past]
    capacity: int | None
    limit: int
    length: int = 0
    start_B: torch.Tensor | None = field(default=None, repr=False)

    @classmethod
    def empty(
        cls, config: ModelConfig, batch: int, capacity: int | None = None, dtype=torch.float32, device="cpu"
    ) -> Cache:
        """A cache for `batch` sequences, of at most `capacity` tokens if that is given.

        Raises: CacheError if the model has no such positions, or is not causal.
        """
        if capacity is not None and not 1 <= capacity <= config.max_position_embeddings:
            raise CacheError(
                f"capacity={capacity}: the model has max_position_embeddings={config.max_position_embeddings}; "
                "shorten the prompt or generate fewer tokens"
            )
        mixers = [block.self_attn for block in config.decoder.layers]
        if not all(mixer is None or mixer.causal for mixer in mixers):
            raise CacheError("causal=False: earlier tokens see later ones, so nothing can be kept; run without a cache")
        new = {"dtype": dtype, "device": device}
        # Zeros, not empty: what a mask hides is still multiplied, by a weight of 0, and 0 * NaN is NaN.
        tensors = [tuple(torch.zeros(shape, **new) for shape in shapes(m, batch, capacity or 0)) for m in mixers]
        windows = [None if capacity or m is None else m.sliding_window for m in mixers]
        layers = [Past(one, window=window) for one, window in zip(tensors, windows, strict=True)]
        return cls(layers, capacity, config.max_position_embeddings)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return nbytes([layer.tensors for layer in self.layers])

    def advance(self, position_ids_BT: torch.Tensor | None, batch: int, tokens: int, device) -> torch.Tensor:
        """Make room for a pass; its positions [B, T], the given ones or the next.

        Raises: CacheError, with nothing changed, if the cache is full or the positions do not go on where it ended.
        """
        start_B, end = self.start_B, self.length + tokens
        if start_B is None:
            start_B = torch.zeros(batch, dtype=torch.int64, device=device)
            if position_ids_BT is not None:
                start_B = (-position_ids_BT[:, 0]).clamp(min=0)
        if position_ids_BT is None:
            position_ids_BT = torch.arange(self.length, end, device=device) - start_B[:, None]
        elif not position_ids_BT.is_meta:  # a meta tensor has no values to check
            slots_B = position_ids_BT[:, 0] + start_B
            end = int(slots_B.max()) + tokens
            if self.capacity is None and bool((slots_B != self.length).any()):
                raise CacheError("position_ids: a growing cache goes on where it ended; pad prompts in front")
        if self.capacity and end > self.capacity:
            raise CacheError(
                f"capacity={self.capacity}: full, this pass needs {end} slots; make a Cache of a larger capacity"
            )
        if end > self.limit:
            raise CacheError(f"{end} tokens: more than max_position_embeddings={self.limit}; give fewer")
        self.start_B, self.length = start_B, end
        for layer in self.layers if self.capacity else ():
            layer.write_indices_B = position_ids_BT[:, 0] + start_B
        return position_ids_BT

    def key_positions(self, tokens: int, window: int | None) -> torch.Tensor:
        """Positions of the keys that a pass of T tokens attends to, [B, S]; below 0 for padding. After `advance`."""
        first, end = 0, self.capacity
        if not self.capacity:
            end = self.length
            first = max(0, end - tokens - window) if window else 0
        return torch.arange(first, end, device=self.start_B.device) - self.start_B[:, None]


def shapes(mixer, batch: int, slots: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of what a mixer keeps of a batch."""
    if mixer is None:
        return ()
    d = mixer.dims
    if isinstance(mixer, Recurrent):
        heads, rows, columns = ("gr", "u", "n") if "n" in d else ("ir", "j", "u")
        return (batch, d["x"], d["k"]), (batch, d[heads[0]] * d[heads[1]], d[rows], d[columns])
    if "J" in d:
        return (batch, 1, slots, d["J"]), (batch, 1, slots, d["Q"])
    return (batch, d["K"], slots, d["H"]), (batch, d["K"], slots, d.get("U", d["H"]))


@dataclass
class CrossCache:
    """Keys and values [B, K, X, H] of each decoder layer's cross-attention, and which source tokens are there."""

    layers: list[Tensors]
    source_mask_BX: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return nbytes(self.layers)
