"""Where a build's weights come from: a model in memory, a checkpoint, or chance; some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from archcalc.config import ModelConfig
from export.reference import SEED, origin, weights_file
from export.weights_file import Rows
from models.builder import skeleton
from models.random_weights import random_rows
from models.supported import check_computed
from models.weights import Checkpoint, checkpoint


@dataclass(frozen=True)
class Source:
    """Weights of a model.

    Args:
        weights: a tensor of the name and shape of each, in the order in which they come, maybe without its numbers.
        rows: gives (name, first row, rows) of all of them, each one's rows in order.
        origin: gives what a manifest says of them.
        checkpoint: the files that they come from.
    """

    weights: dict[str, torch.Tensor]
    rows: Callable[[], Rows]
    origin: Callable[[], dict[str, Any]]
    checkpoint: Checkpoint | None = None


def model_source(model: torch.nn.Module, about: dict[str, Any]) -> Source:
    """The weights of a model in memory. Args: about: what a manifest says of them."""
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    return Source(weights, lambda: ((name, 0, tensor) for name, tensor in weights.items()), lambda: about)


def random_source(config: ModelConfig) -> Source:
    """The weights that `models.build` gives."""
    check_computed(config)
    model = skeleton(config)
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    return Source(weights, partial(random_rows, model, seed=SEED), partial(origin, None))


def file_source(found: Checkpoint) -> Source:
    """The weights of a checkpoint. Raises: WeightsError if it is not that of the config."""
    weights = {part.name: torch.empty(part.tensor.shape, device="meta") for part in found.outline()}

    def rows() -> Iterator[tuple[str, int, torch.Tensor]]:
        return ((part.name, 0, part.tensor) for part in found.parts())

    return Source(weights, rows, partial(origin, found.path), found)


def source(config: ModelConfig, choice: str = "auto") -> Source:
    """The weights that a choice means; arguments as `reference.weights_file`."""
    path = weights_file(config, choice)
    return random_source(config) if path is None else file_source(checkpoint(path, config))
