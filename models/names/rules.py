"""What files call the tensors of a model: one table a family, from the file's name to ours.

A key is a name in a file, without the prefix of the base model (`PREFIXES`). A value is our name, or our name and the
layout of the tensor, a function of `models.layouts`; `NOTHING` is a constant or a part that our models do not have.
Places: `{i}` a layer, `{e}` an expert, `{p}` weight or bias, `{qkvo}` one of four projections, `{ffn}` gate, up or
down, `{stack}` encoder or decoder. `(q|k|v)` names one of our tensors each, in the order in which the layout gives
them, and `*` each expert. Where several keys match, the first one counts.
Source: the Hugging Face classes of these model types, and the checkpoints that are published for them.
"""

from __future__ import annotations

import re

Table = dict[str, str | tuple[str, str]]

NOTHING = ""
EITHER, SPARE = "either", "spare"  # our one name that the model has; a head for another task, left out if it has none

PLACES = {
    "i": r"\d+", "e": r"\d+", "p": "weight|bias", "qkvo": "[qkvo]", "ffn": "gate|up|down", "stack": "encoder|decoder",
}  # fmt: skip
PREFIXES = (
    "model.", "transformer.", "gpt_neox.", "backbone.", "bert.", "roberta.", "distilbert.transformer.", "distilbert.",
    "biogpt.",
)  # fmt: skip
OLD_ENDS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


def changed(table: Table, *changes: Table) -> Table:
    """A table with other rules in place of, and in front of, its own."""
    for change in changes:
        table = change | {name: rule for name, rule in table.items() if name not in change}
    return table


def alternatives(target: str) -> list[str]:
    """`a.(x|y).b` as [a.x.b, a.y.b]; an empty list for NOTHING."""
    before, choice, after = re.fullmatch(r"([^(]*)(?:\((.*)\))?(.*)", target).groups()
    return [before + one + after for one in choice.split("|")] if choice else [target] if target else []
