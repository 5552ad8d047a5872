"""Embeddings of each layer's own, as in Gemma 3n and Gemma 4: a token has a narrow vector for every layer.

Source: Hugging Face, `gemma3n` and `gemma4`; the effective sizes E2B and E4B leave these tables out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op


@dataclass(frozen=True)
class PerLayerInput:
    """A layer's row of a table plus its projection of the token's embedding, normed; gates what the layer adds last.

    Args:
        size: its width, hidden_size_per_layer_input. vocab_size: rows of the table, vocab_size_per_layer_input.
        norm: of the vector (one weight for all layers) and of what the layer adds (one a layer).
    """

    size: int
    vocab_size: int
    norm: Norm

    def __post_init__(self):
        positive(hidden_size_per_layer_input=self.size, vocab_size_per_layer_input=self.vocab_size)

    @property
    def dims(self) -> dict[str, int]:
        """V is the rows of this table, in the groups of these ops."""
        return {"π": self.size, "V": self.vocab_size}

    def ops(self) -> tuple[Op, ...]:
        """Of one layer."""
        return _layer_ops(self.norm)

    def once_ops(self) -> tuple[Op, ...]:
        """What the layers share: the norm's weight."""
        return (Op("per_layer_projection_norm", (weight("π"),) * self.norm.vectors, Tensor("chip", "π")),)


@lru_cache(maxsize=16)
def _layer_ops(norm: Norm) -> tuple[Op, ...]:
    shared = (Tensor("tied", "π"),) * norm.vectors
    return (
        Op("embed_tokens_per_layer", (weight("Vπ"),), activation("BTπ"), gather="V", indices="BT"),
        linear("per_layer_model_projection", "BTD", "Dπ", "BTπ", False),
        Op("per_layer_projection_norm", (activation("BTπ"), *shared), activation("BTπ")),
        linear("per_layer_input_gate", "BTD", "Dπ", "BTπ", False),
        linear("per_layer_projection", "BTπ", "πD", "BTD", False),
        norm_op(norm, "post_per_layer_input_norm"),
    )
