"""Parameters in each convention of model cards, and how many experts a batch touches."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from archcalc.config import ModelConfig, once_a_config
from archcalc.cost import Line, active_parameters, bound, buffers, parameters
from archcalc.ops import size
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


def _is_table(line: Line) -> bool:
    return line.op.gather in ("V", "M", "t")


def _is_head(line: Line) -> bool:
    return not line.group.block and line.name.split(".")[0] in HEADS


def _shared_with_head(config: ModelConfig, line: Line) -> bool:
    """Whether a token table is also the head's matrix: in a pair of stacks that share none, the decoder's is."""
    tied = config.tie_word_embeddings and config.head.has_logits
    return tied and not line.name.startswith("encoder.")


def _matrices(found: list[Line], roles: tuple[str, ...]) -> tuple[int, int]:
    """(all, active) elements of the matrices that these lines multiply: of E experts a token uses A."""
    total = active = 0
    for line in found:
        for role, axes in line.op.matrices:
            if role in roles:
                whole = line.count * size(axes, line.dims)
                total += whole
                active += whole * line.dims["A"] // line.dims["E"] if line.op.gather == "E" else whole
    return total, active


@once_a_config
def parameter_counts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """`total` and `active` (what one token uses) in each of `CONVENTIONS`."""
    found, whole = lines(config), (parameters(config), active_parameters(config))
    tables = [line for line in found if _is_table(line)]
    ends = tables + [line for line in found if _is_head(line)]
    inputs = [line for line in tables if line.op.name == "embed_tokens" and not _shared_with_head(config, line)]

    def without(left_out: list[Line]) -> tuple[int, int]:
        less = sum(line.count * line.params for line in left_out)  # no table has experts
        return whole[0] - less, whole[1] - less

    counts = {
        "all": whole,
        "all and buffers": tuple(count + buffers(config) for count in whole),
        "without input embedding": without(inputs),
        "without embedding and head": without(ends),
        "matrices of blocks": _matrices([line for line in found if line.group.block], ("weight",)),
        "matrices of blocks and head": _matrices([line for line in found if not _is_table(line)], ("weight", "tied")),
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
