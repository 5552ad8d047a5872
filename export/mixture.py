"""A mixture of experts in a graph: each expert computes its own tokens alone, and one without tokens is not read.

The router is traced with the block, one expert once, as the function `Expert`. Between them stands `Experts`, made
here, which calls `Expert` with the weights of each. How many tokens an expert has is known when the graph runs, and
TensorRT allows no shape to depend on that. So there are two forms.
`any` runtime: tokens lie in blocks of `ROWS` of one expert, the last of each filled up with a row of zeros; a Loop an
expert runs over its blocks, none if no token chose it. A pass of one token multiplies what it must, a long one fills
up half a block an expert, on average.
`onnxruntime`: tokens sorted by expert, then split: nothing is filled up, and a product of no rows costs nothing.
Quantized experts always have this form: ONNX Runtime 1.32 loads no graph with grouped integers in a Loop.
Source: ONNX operator specifications of Loop, ScatterND, GatherND and Split (opset 24).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from archcalc.config import MixtureOfExperts
from export.onnx_from_torch import Functions
from export.quantize import Integers
from export.tracing import DOMAIN, OPSET, Function, remade

ROWS = 32  # tokens of a block, as many as make a product of matrices worth while
EXPERTS, PREFIX = "Experts", "mlp.experts."  # of the functions made here, and of weights in a block


class Nodes:
    """Nodes in order; a call adds one and gives the name of what it makes."""

    def __init__(self, suffix: str = ""):
        self.list: list[onnx.NodeProto] = []
        self._suffix = suffix

    def __call__(self, kind: str, *inputs: str, to: str | None = None, domain: str = "", **attributes) -> str:
        output = to or f"{kind}_{len(self.list)}{self._suffix}"
        self.list.append(helper.make_node(kind, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, name: str, value, dtype=np.int64) -> str:
        return self("Constant", to=name, value=numpy_helper.from_array(np.array(value, dtype), name))


def linked(
    functions: Functions, forms: dict[str, dict[str, Integers]], target: str
) -> tuple[Functions, dict[str, dict[str, Integers]]]:
    """The functions with `Experts` between blocks and their experts, blocks taking the weights of all of these.

    Args:
        forms: how each function's integers are stored; what comes back has the experts' of a block in it.
    """
    if not functions.experts:
        return functions, forms
    make, composed, blocks, forms = _split if forms else FORMS[target], [], dict(functions.blocks), dict(forms)
    numbers = {mixture: number for number, mixture in enumerate(functions.experts)}
    for mixture, expert in functions.experts.items():
        composed.append(make(f"{EXPERTS}{numbers[mixture]}", mixture, expert))
    for kind, block in functions.blocks.items():
        if kind.mlp in numbers:
            expert = functions.experts[kind.mlp]
            blocks[kind] = _with_experts(block, f"{EXPERTS}{numbers[kind.mlp]}", kind.mlp, expert)
            if inner := forms.get(expert.name):
                every = range(kind.mlp.num_local_experts)
                theirs = {f"{PREFIX}{e}.{weight}": form for e in every for weight, form in inner.items()}
                forms[block.name] = forms[block.name] | theirs
    return replace(functions, blocks=blocks, composed=tuple(composed)), forms


def _weights(mixture: MixtureOfExperts, expert: Function) -> list[str]:
    """The weights of all experts, by their names in a block."""
    return [f"{PREFIX}{e}.{weight}" for e in range(mixture.num_local_experts) for weight in expert.weights]


def _with_experts(block: Function, name: str, mixture: MixtureOfExperts, expert: Function) -> Function:
    """The block with its placeholder turned into a call of `name`."""
    weights, old = _weights(mixture, expert), block.proto
    nodes, place = list(old.node), next(index for index, node in enumerate(old.node) if node.domain == DOMAIN)
    inputs = [*nodes.pop(place).input, *map(_passed, weights)]
    call = helper.make_node(name, inputs, list(old.node[place].output), domain=DOMAIN)
    nodes[place:place] = [*_passing(weights), call]
    inputs, every = [*old.input, *weights], [*block.weights, *weights]
    return remade(block, nodes, inputs=inputs, weights=every, domain=DOMAIN)


def _passed(weight: str) -> str:
    return f"{weight}.passed"


def _passing(weights: list[str]) -> list[onnx.NodeProto]:
    """Nodes that say of integers passed on that they may be of 4 bits: ONNX Runtime asks each function's own nodes."""
    return [helper.make_node("Identity", [weight], [_passed(weight)]) for weight in weights]


def _function(name: str, mixture: MixtureOfExperts, expert: Function, nodes: Nodes) -> Function:
    """Experts(x [t, D], shares [t, A], chosen [t, A], weights of all) to y [t, D]."""
    weights = _weights(mixture, expert)
    inputs, every = ["x", "shares", "chosen", *weights], [*_passing(weights), *nodes.list]
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return Function(helper.make_function(DOMAIN, name, inputs, ["y"], every, imports), ())


def _call(nodes: Nodes, expert: Function, index: int, x: str) -> str:
    weights = [_passed(f"{PREFIX}{index}.{weight}") for weight in expert.weights]
    return nodes(expert.name, x, *weights, domain=DOMAIN)


def _ranks(n: Nodes, mixture: MixtureOfExperts) -> tuple[str, str]:
    """(how many tokens each expert has [E], of each token and expert how many before it chose that too [t, E])."""
    for name, value in (("zero", 0), ("one", 1), ("axis_0", [0]), ("axis_1", [1]), ("last_axis", [-1])):
        n.constant(name, value)
    n.constant("experts", mixture.num_local_experts)
    n.constant("per_token", mixture.num_experts_per_tok)
    hot_tAE = n("OneHot", "chosen", "experts", n.constant("off_on", [0, 1]))
    chose_tE = n("ReduceSum", hot_tAE, "axis_1", keepdims=0)
    ranks_tE = n("Sub", n("CumSum", chose_tE, "zero"), chose_tE)
    return n("ReduceSum", chose_tE, "axis_0", keepdims=0), ranks_tE


def _split(name: str, mixture: MixtureOfExperts, expert: Function) -> Function:
    """Tokens sorted by expert and split between them; back in their order they are summed in shares."""
    n, count = Nodes(), mixture.num_local_experts
    counts_E, ranks_tE = _ranks(n, mixture)
    starts_E = n("Sub", n("CumSum", counts_E, "zero"), counts_E)
    places_tA = n("GatherElements", n("Add", ranks_tE, starts_E), "chosen", axis=1)
    places_a = n("Reshape", places_tA, "last_axis")
    every_a = n("Range", "zero", n("Size", "chosen"), "one")
    order_a = n("ScatterND", every_a, n("Unsqueeze", places_a, "last_axis"), every_a)  # by place: t·A + which of A
    sorted_aD = n("Gather", "x", n("Div", order_a, "per_token"))
    parts = [f"x.{e}" for e in range(count)]
    n.list.append(helper.make_node("Split", [sorted_aD, counts_E], parts, axis=0))
    made_aD = n("Concat", *(_call(n, expert, e, part) for e, part in enumerate(parts)), axis=0)
    weighted_tAD = n("Mul", n("Gather", made_aD, places_tA), n("Unsqueeze", "shares", "last_axis"))
    n("ReduceSum", weighted_tAD, "axis_1", to="y", keepdims=0)
    return _function(name, mixture, expert, n)


def _looped(name: str, mixture: MixtureOfExperts, expert: Function) -> Function:
    """Blocks of one expert's tokens; a block's rows without a token read and write a row t that is dropped."""
    n = Nodes()
    counts_E, ranks_tE = _ranks(n, mixture)
    tokens_1 = n("Shape", "x", start=0, end=1, to="tokens_1")
    tokens = n("Squeeze", tokens_1, "axis_0")
    rows = n("Min", tokens, n.constant("rows_most", ROWS))
    blocks_E = n("Div", n("Add", counts_E, n("Sub", rows, "one")), rows)
    ends_E = n("CumSum", blocks_E, "zero")
    starts_E = n("Sub", ends_E, blocks_E)
    places_tE = n("Add", ranks_tE, n("Mul", starts_E, rows))
    places_a1 = n("Reshape", n("GatherElements", places_tE, "chosen", axis=1), n.constant("column", [-1, 1]))
    most = n("Add", n("Div", n("Mul", tokens, "per_token"), rows), "experts")  # blocks, whoever chose what
    grid = n("Concat", n("Unsqueeze", most, "axis_0"), n("Unsqueeze", rows, "axis_0"), "axis_1", axis=0)  # and 1
    line = n("Unsqueeze", n("Mul", most, rows), "axis_0")
    every_a = n("Range", "zero", n("Mul", tokens, "per_token"), "one")
    of_a = n("Div", every_a, "per_token")
    token_br1 = n("Reshape", n("ScatterND", n("Expand", tokens, line), places_a1, of_a), grid)
    none = n("CastLike", n.constant("nothing", 0, np.float32), "x")
    shares_a = n("Reshape", "shares", "last_axis")
    share_br1 = n("Reshape", n("ScatterND", n("Expand", none, line), places_a1, shares_a), grid)
    padded = n("Pad", "x", n.constant("one_row", [0, 0, 1, 0]))
    sums = n("Expand", none, n("Shape", padded))
    for e in range(mixture.num_local_experts):
        index = n.constant(f"expert_{e}", e)
        start, end = n("Gather", starts_E, index), n("Gather", ends_E, index)
        body = _block_of_tokens(expert, e, end, token_br1, share_br1, padded)
        outputs = [f"after_{e}", f"sums_{e}"]
        n.list.append(helper.make_node("Loop", ["", n("Less", start, end), start, sums], outputs, body=body))
        sums = outputs[1]
    n("Slice", sums, "axis_0", tokens_1, "axis_0", to="y")
    return _function(name, mixture, expert, n)


def _block_of_tokens(
    expert: Function, index: int, end: str, token_br1: str, share_br1: str, x_tD: str
) -> onnx.GraphProto:
    """The body of an expert's Loop: block `at` is computed and added to the sums."""
    inner = Nodes(f".{index}")
    at, sums = f"at.{index}", f"sums.{index}"
    token_r1 = inner("Gather", token_br1, at)
    made_rD = _call(inner, expert, index, inner("GatherND", x_tD, token_r1))
    weighted_rD = inner("Mul", made_rD, inner("Gather", share_br1, at))
    new_rD = inner("Add", inner("GatherND", sums, token_r1), weighted_rD)
    added = inner("ScatterND", sums, token_r1, new_rD)
    following = inner("Add", at, "one")
    more = inner("Less", following, end)
    value, ints = helper.make_tensor_value_info, TensorProto.INT64
    unknown = onnx.ValueInfoProto  # of x's type, which a function does not know
    inputs = [value(f"round.{index}", ints, []), value(f"go_on.{index}", TensorProto.BOOL, []), value(at, ints, [])]
    outputs = [value(more, TensorProto.BOOL, []), value(following, ints, []), unknown(name=added)]
    return helper.make_graph(inner.list, f"block.{index}", [*inputs, unknown(name=sums)], outputs)


FORMS = {"any": _looped, "onnxruntime": _split}
