"""Attention whose query and output projections are experts: a token's queries come from those that it is sent to.

Source: Shen et al. 2024, arXiv:2404.07413 (JetMoE), section 2; Zhang et al. 2022, arXiv:2210.05144.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.errors import ConfigError
from archcalc.ops import Op, Tensor, activation, cache, linear, weight
from archcalc.parts.attention import Attention, key_value_ops


@dataclass(frozen=True)
class RoutedAttention(Attention):
    """Each of A experts that a token goes to asks with one query a key/value head: N = A·K.

    Args:
        num_local_experts: E, of which the token goes to num_attention_heads / num_key_value_heads.
    """

    num_local_experts: int = 1

    def __post_init__(self):
        super().__post_init__()
        positive(num_local_experts=self.num_local_experts)
        chosen = self.num_attention_heads // self.num_key_value_heads
        if chosen > self.num_local_experts:
            raise ConfigError(
                f"num_experts_per_tok={chosen}: larger than num_local_experts={self.num_local_experts}; "
                "a token cannot go to more experts than there are"
            )

    @property
    def dims(self) -> dict[str, int]:
        """The axis sizes that it fixes."""
        found = super().dims
        return found | {"E": self.num_local_experts, "A": found["G"]}

    def ops(self, name: str) -> tuple[Op, ...]:
        """Self-attention over T new tokens and S keys."""
        return _routed_ops(self, name)


@lru_cache(maxsize=64)
def _routed_ops(a: RoutedAttention, name: str) -> tuple[Op, ...]:
    asked, scores = activation("BTAKH"), Tensor("chip", "BAKTS")

    def expert(matrix: str, x: str, axes: str, y: str) -> Op:
        owned = (activation(x), weight(axes))
        return Op(f"{name}.experts.{matrix}", owned, activation(y), gather="E", indices="BTA")

    return (
        linear(f"{name}.router", "BTD", "DE", "BTE", False),
        expert("q_proj", "BTD", "EDKH", "BTAKH"),
        *key_value_ops(a, name),
        Op(f"{name}.scores", (asked, cache("BSKH")), scores, mask=a.mask),
        Op(f"{name}.context", (scores, cache("BSKH")), asked, mask=a.mask),
        expert("o_proj", "BTAKH", "EKHD", "BTD"),
        Op(f"{name}.bias", (activation("BTD"), weight("D")), activation("BTD")),
    )
