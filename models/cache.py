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
        """Keep the new tokens; return all that this pass may attend to, along the second to last axis.

        Raises: CacheError for tokens of another type than the cache's.
        """
        if self.tensors[0].dtype != new[0].dtype:
            raise CacheError(f"dtype: {new[0].dtype} into a cache of {self.tensors[0].dtype}; make one of that dtype")
        if self.write_indices_B is None:
            every = tuple(torch.cat(pair, dim=-2) for pair in zip(self.tensors, new, strict=True))
            # Copied, for a view would keep all of it.
            self.tensors = tuple(t[..., -self.window :, :].clone() for t in every) if self.window else every
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
        overwrites: slots are written again, so that prompts may be padded behind.
        length: slots after which nothing has been written.
        start_B: padding in front of each row.
    """

    layers: list[Past]
    capacity: int | None
    limit: int
    overwrites: bool = False
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
        overwrites = bool(capacity) and not any(isinstance(mixer, Recurrent) for mixer in mixers)
        return cls(layers, capacity, config.max_position_embeddings, overwrites)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return nbytes([layer.tensors for layer in self.layers])

    def advance(self, position_ids_BT: torch.Tensor | None, batch: int, tokens: int, device) -> torch.Tensor:
        """Make room for a pass; its positions [B, T], the given ones or the next.

        Raises: CacheError, with nothing changed, if the cache is full or the positions do not go on where it ended.
        """
        start_B, end = self.start_B, self.length + tokens
        kept = next((tensor for layer in self.layers for tensor in layer.tensors), None)
        if kept is not None and len(kept) != batch:
            raise CacheError(f"batch {batch}: the cache is for {len(kept)} sequences; make one for this batch")
        if start_B is None:
            start_B = torch.zeros(batch, dtype=torch.int64, device=device)
            if position_ids_BT is not None:
                start_B = (-position_ids_BT[:, 0]).clamp(min=0)
        if position_ids_BT is None:
            position_ids_BT = torch.arange(self.length, end, device=device) - start_B[:, None]
        slots_B = position_ids_BT[:, 0] + start_B
        if not slots_B.is_meta:  # a meta tensor has no values to check
            end = int(slots_B.max()) + tokens
            self._check(slots_B, end, end - int(start_B.min()))
        self.start_B, self.length = start_B, max(self.length, end)
        for layer in self.layers if self.capacity else ():
            layer.write_indices_B = slots_B
        return position_ids_BT

    def _check(self, slots_B: torch.Tensor, end: int, reach: int) -> None:
        """Raise CacheError for a pass that has no room, or leaves a gap, or goes back where that is no overwriting."""
        bound = ("capacity", self.capacity, end) if self.capacity else ("max_position_embeddings", self.limit, reach)
        name, most, used = bound
        if used > most:
            raise CacheError(f"{name}={most}: this pass needs {used}; make a larger cache or give fewer tokens")
        back = 0 if self.overwrites else self.length
        if bool(((slots_B < back) | (slots_B > self.length)).any()):
            where = "may go back over padding, no further" if self.overwrites else "must go on where it ended"
            raise CacheError(f"position_ids: a pass after {self.length} tokens {where}; pad prompts in front")

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
