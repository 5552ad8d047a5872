"""DeBERTa's attention by content and distance: scores also of queries with distances, and of keys with them."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.checks import positive
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op


@dataclass(frozen=True)
class Disentangled:
    """Scores by distance, beside those by content.

    Args:
        rows: of the table of distances, b: each bucket on either side.
        keys: queries meet projected distances (content to position). queries: keys meet them (position to content).
        shared: distances are projected by the layer's own keys' and queries' matrices; otherwise by further ones.
        owner: this layer owns the table, and `norm` over it, which all layers use.
    Source: He et al. 2020, arXiv:2006.03654, section 3.1.
    """

    rows: int
    keys: bool = True
    queries: bool = True
    shared: bool = False
    owner: bool = False
    norm: Norm | None = None

    def __post_init__(self):
        positive(position_buckets=self.rows)

    @property
    def dims(self) -> dict[str, int]:
        return {"b": self.rows}

    def ops(self, name: str) -> tuple[Op, ...]:
        """The table and its norm, then each side: project the distances, and score."""
        found: tuple[Op, ...] = ()
        if self.owner:
            found = (Op(f"{name}.distances", (weight("bD"),), Tensor("chip", "bD")),)
            found += (norm_op(self.norm, f"{name}.distances_norm", "bD"),) if self.norm else ()
        for side, used in (("key", self.keys), ("query", self.queries)):
            if used:
                found += (self._projected(f"{name}.pos_{side}_proj"), _scored(f"{name}.pos_{side}_scores"))
        return found

    def _projected(self, name: str) -> Op:
        if not self.shared:
            return linear(name, "bD", "DNH", "bNH", True)
        return Op(name, (activation("bD"), Tensor("tied", "DNH"), Tensor("tied", "NH")), activation("bNH"))


def _scored(name: str) -> Op:
    """What each token's query or key makes of every distance; of those the score of a pair is picked."""
    return Op(name, (activation("BTNH"), activation("bNH")), Tensor("chip", "BTNb"))
