"""The passes that `export verify` compares: named cases of prompts, padding and decode steps, of any capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from archcalc.config import ModelConfig, Recurrent
from models import DecoderOnly
from models.cache import Cache

STEPS = 32  # decode passes of a case, where the cache has room for them
PROMPT = (12, 5, 9)  # tokens of the prompts of a batch; shorter ones where the cache is small
LOGIT_POSITIONS = 64  # of a pass at most: a full cache times a vocabulary would not fit into memory


class Pass(NamedTuple):
    """The inputs of one pass over T tokens of B rows, as `engine.run` takes them, all int64, and what is no padding.

    Args:
        logit_indices: [B, R], which of the T tokens get logits; the last column is each row's last real token.
        real_BT: False where a token is padding, so that nothing computed there means anything.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    write_indices: np.ndarray
    logit_indices: np.ndarray
    real_BT: np.ndarray

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return self[:4]

    @property
    def seen_BR(self) -> np.ndarray:
        """False where `logit_indices` asks for the logits of padding."""
        return np.take_along_axis(self.real_BT, self.logit_indices, 1)


@dataclass(frozen=True)
class Case:
    """A prefill of prompts padded to `slots` tokens, then decode steps.

    Args:
        lengths: tokens of each prompt, without padding. in_front: the padding is before the prompt: a token's slot is
            its position + padding. Else it is behind, and decoding overwrites it.
    """

    name: str
    lengths: tuple[int, ...]
    slots: int
    in_front: bool
    steps: int

    @property
    def padding_B(self) -> np.ndarray:
        """Slots in front of each row's first token."""
        return np.array([self.slots - length if self.in_front else 0 for length in self.lengths])

    def prefill(self, vocab_size: int) -> Pass:
        """Random tokens, in the padding too: a graph that reads it must not get away with it."""
        batch, tokens = len(self.lengths), np.arange(self.slots)
        ids_BT = np.random.default_rng([self.slots, batch]).integers(0, vocab_size, (batch, self.slots))
        positions_BT = tokens - self.padding_B[:, None]
        lengths_B1 = np.array(self.lengths)[:, None]
        chosen_R = np.linspace(0, self.slots - 1, min(self.slots, LOGIT_POSITIONS)).astype(np.int64)
        logits_BR = np.tile(chosen_R, (batch, 1))
        logits_BR[:, -1] = (lengths_B1 + self.padding_B[:, None] - 1)[:, 0]
        real_BT = (positions_BT >= 0) & (positions_BT < lengths_B1)
        return Pass(ids_BT, positions_BT, np.zeros(batch, np.int64), logits_BR, real_BT)

    def decode(self, step: int, tokens_B: np.ndarray) -> Pass:
        """Decode step `step`, from 0, of these tokens."""
        positions_B = np.array(self.lengths) + step
        grid = len(tokens_B), 1
        write_B = positions_B + self.padding_B
        return Pass(tokens_B[:, None], positions_B[:, None], write_B, np.zeros(grid, np.int64), np.ones(grid, bool))

    def compared_BC(self, capacity: int) -> np.ndarray:
        """The cache slots to compare after the last step: those of tokens, and those that nothing may have written."""
        slots_C, first_B1 = np.arange(capacity), self.padding_B[:, None]
        end_B1 = first_B1 + np.array(self.lengths)[:, None] + self.steps
        written = (slots_C >= first_B1) & (slots_C < end_B1)
        return written | (slots_C >= np.maximum(end_B1, self.slots))


def cases(config: ModelConfig, capacity: int, steps: int = STEPS, fused: bool = False) -> list[Case]:
    """The table of cases for a cache of `capacity` tokens a row.

    A recurrent state cannot take back what it has read, so a model with one has no padding behind; `fused` attention
    of target=onnxruntime begins in slot 0, so there is none in front.
    """
    longest = max(1, min(PROMPT[0], capacity // 2))
    unequal = tuple(max(1, longest * length // PROMPT[0]) for length in PROMPT)
    shifted = min(capacity, longest + max(1, longest // 2))
    last = min(4, capacity - 1)
    table = [
        ("one prompt", (longest,), longest, False, steps),
        ("unequal prompts, padded behind", unequal, longest, False, steps),
        ("unequal prompts, padded in front", unequal, longest, True, steps),
        ("slots ahead of positions", unequal, shifted, True, min(4, steps)),
        ("a full cache in one pass", (capacity,), capacity, False, 0),
        ("the last slot by decoding", (capacity - last,), capacity - last, False, last),
    ]
    recurrent = any(isinstance(block.self_attn, Recurrent) for block in config.decoder.layers)
    return [
        Case(name, lengths, slots, in_front, min(decodes, capacity - slots))
        for name, lengths, slots, in_front, decodes in table
        if (not fused if in_front else len(lengths) == 1 or not recurrent)
    ]


def reference_pass(model: DecoderOnly, one: Pass, cache: Cache) -> np.ndarray:
    """Logits [B, R, V] of PyTorch; the pass is added to `cache`."""
    ids_BT, positions_BT, _, logits_BR = map(torch.from_numpy, one.inputs)
    x_BTD = model.trunk(ids_BT, positions_BT, cache)
    return model.head(x_BTD.gather(1, logits_BR[..., None].expand(-1, -1, x_BTD.shape[-1]))).numpy()
