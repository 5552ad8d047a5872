"""Which models the exporter turns into a graph. Parts that it cannot express yet are refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from archcalc.config import MixtureOfExperts, ModelConfig
from export.files import ExportError
from export.onnx_from_torch import first_attention


def _inexpressible(config: ModelConfig) -> Iterator[str]:
    """What of a model has no graph yet, in words."""
    if config.head.kind == "labels":
        yield "a head of labels"
    for block in config.encoder.layers if config.encoder else ():
        rotary = getattr(block.self_attn, "rotary", None)
        if rotary and rotary.short_context:
            yield "an encoder whose rotary positions depend on the source's length (longrope)"
        if isinstance(block.mlp, MixtureOfExperts):
            yield "an encoder's mixture of experts"
    for stack in config.stacks.values():
        shares = [block.residual.value_residual for block in stack.layers]
        first = first_attention(stack.layers)
        if any(shares) and (first is None or shares[first]):
            yield "a value residual without an attention before it"


def check_exportable(config: ModelConfig) -> None:
    """Raise ExportError, naming the part, for what has no graph yet."""
    if part := next(_inexpressible(config), None):
        raise ExportError(f"{config.name}: {part} cannot be exported yet; give a model without it")
