"""Random weights, some rows at a time, so that a model's need not all be in memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import nn

from models.norm import RMSNorm

AT_ONCE = 2**22  # numbers
BLOCK = 16  # PyTorch fills normal numbers in blocks of so many: from their second row on, pieces must begin at one


def random_rows(model: nn.Module, device="cpu", seed: int = 0) -> Iterator[tuple[str, int, torch.Tensor]]:
    """(name, first row, rows) of every tensor of a model, in its order: normal(0, 0.02), norms the identity, biases 0.

    Each tensor's rows come in order. The numbers are those that whole tensors would be filled with.

    Args:
        model: its names, shapes and types count, so that it may lie on the meta device.
    Source: Radford et al. 2019.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        owner = model.get_submodule(name.rpartition(".")[0])
        is_normal = isinstance(owner, nn.Linear | nn.Embedding | nn.Conv1d) or tensor.ndim > 1
        offset = owner.config.offset if isinstance(owner, RMSNorm) else 0
        constant = 1.0 - offset if name.endswith(("weight", ".D")) else 0.0
        for start, end in _pieces(tensor.shape, device):
            rows = torch.empty(end - start, *tensor.shape[1:], dtype=tensor.dtype, device=device)
            if is_normal:
                rows.normal_(std=0.02, generator=generator)
            else:
                rows.fill_(constant)
            yield name, start, rows


def _pieces(shape: torch.Size, device) -> Iterator[tuple[int, int]]:
    """Ranges of rows with whole blocks of numbers, the last one with at least a block."""
    rows = shape[0]
    step = rows if torch.device(device).type != "cpu" else max(1, AT_ONCE // prod(shape[1:]) // BLOCK) * BLOCK
    starts = range(0, max(1, rows - BLOCK + 1), step)
    return zip(starts, [*starts[1:], rows], strict=True)
