"""Parameters in each convention of model cards, and how many experts a batch touches."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from archcalc.config import ModelConfig, once_a_config
from archcalc.cost import Line, active_parameters, bound, buffers, parameters
from archcalc.ops import Op, size
from archcalc.precision import Precision

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONVENTIONS = {
    "all": "every stored weight, a tied matrix once",
    "all and buffers": "and what is stored beside the weights, such as a router's correction bias",
    "without input embedding": "without the token table, unless the head is the same matrix",
    "without embedding and head": "without tables of tokens, positions and types, and without the head",
    "matrices of blocks": "only what the products of blocks multiply: no tables, head, biases or norms",
    "matrices of blocks and head": "what products multiply, a tied head too: one multiply-add each a token",
}


# First parts of the names of what ends a model.
HEADS = ("lm_head", "head_projection", "head", "pooler", "classifier", "contact_head")


def lines(config: ModelConfig) -> list[Line]:
    """Every op of the model, those that run once a source first."""
    return [line for part in bound(config) for line in part.lines]


def matrices(op: Op, roles: tuple[str, ...] = ("weight",)) -> tuple[str, ...]:
    """The axes of the weights that a product sums over: matrices, and no bias or scale."""
    found = []
    for role, axes in op.inputs:
        own = axes.replace(op.gather or " ", "")
        summed = op.multiplied and any(axis not in op.output.axes for axis in own)
        if role in roles and len(own) > 1 and summed:
            found.append(axes)
    return tuple(found)


def _is_table(line: Line) -> bool:
    return line.op.gather in ("V", "M", "t")


def _is_head(line: Line) -> bool:
    return not line.group.block and line.name.split(".")[0] in HEADS


def _shared_with_head(config: ModelConfig, line: Line) -> bool:
    """Whether a token table is also the head's matrix: in a pair of stacks that share none, the decoder's is."""
    tied = config.tie_word_embeddings and config.head.has_logits
    return tied and not line.name.startswith("encoder.")


def _owned(op: Op) -> tuple[str, ...]:
    return tuple(tensor.axes for tensor in op.weights)


def _counted(
    found: list[Line], keep: Callable[[Line], bool], axes_of: Callable[[Op], tuple[str, ...]] = _owned
) -> tuple[int, int]:
    """(all, active) elements of the kept lines: of E experts a token uses A."""
    total = active = 0
    for line in filter(keep, found):
        owned = axes_of(line.op)
        dims = line.dims | {"E": line.dims["A"]} if line.op.gather == "E" else line.dims
        total += line.count * sum(size(axes, line.dims) for axes in owned)
        active += line.count * sum(size(axes, dims) for axes in owned)
    return total, active


@once_a_config
def parameter_counts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """`total` and `active` (what one token uses) in each of `CONVENTIONS`."""
    found, stored = lines(config), buffers(config)
    whole = (parameters(config), active_parameters(config))
    counts = {
        "all": whole,
        "all and buffers": (whole[0] + stored, whole[1] + stored),
        "without input embedding": _counted(
            found, lambda line: line.op.name != "embed_tokens" or _shared_with_head(config, line)
        ),
        "without embedding and head": _counted(found, lambda line: not _is_table(line) and not _is_head(line)),
        "matrices of blocks": _counted(found, lambda line: bool(line.group.block), matrices),
        "matrices of blocks and head": _counted(
            found, lambda line: not _is_table(line), lambda op: matrices(op, ("weight", "tied"))
        ),
    }
    return {name: {"total": total, "active": active} for name, (total, active) in counts.items()}


def expected_experts(experts: int, chosen: int, tokens: int) -> Fraction:
    """Distinct experts that a batch touches in one layer, if every token chooses uniformly and by itself.

    An expert is missed by one token with probability 1 - k/E, so E·(1 - (1 - k/E)^tokens), by linearity.

    >>> expected_experts(8, 2, 1), float(expected_experts(8, 2, 4))
    (Fraction(2, 1), 5.46875)
    """
    return experts * (1 - (1 - Fraction(chosen, experts)) ** tokens)


@once_a_config
def _routed(config: ModelConfig) -> list[tuple[int, int, int, int]]:
    """(experts, chosen, layers, elements of one expert), for each kind of layer with routed experts."""
    found: dict[tuple[int, int, int, str], int] = {}
    for line in lines(config):
        if line.op.gather == "E":
            key = (line.dims["E"], line.dims["A"], line.count, line.group.block)
            found[key] = found.get(key, 0) + line.params // line.dims["E"]
    return [(experts, chosen, layers, one) for (experts, chosen, layers, _), one in found.items()]


def expert_rows(config: ModelConfig, stored: Precision) -> list[dict[str, Any]]:
    """Experts that a decode step reads by batch: at most min(E, tokens·k), and expected under uniform routing."""
    rows = []
    for experts, chosen, layers, one in _routed(config):
        for batch in BATCHES:
            most, expected = min(experts, batch * chosen), expected_experts(experts, chosen, batch)
            rows.append(
                {
                    "experts": experts,
                    "chosen": chosen,
                    "layers": layers,
                    "batch": batch,
                    "most": most,
                    "expected": float(expected),
                    "bytes_most": stored.stored_bytes(layers * most * one),
                    "bytes_expected": float(expected * layers * one * stored.bits / 8),
                }
            )
    return rows
