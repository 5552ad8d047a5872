"""The formulas in the layers' docstrings are those that archcalc derives for these layers."""

import re
from math import prod

import pytest
import sympy

from archcalc.config import (
    Attention,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    MixtureOfExperts,
    Norm,
)
from archcalc.parts.norm import norm_op
from models import attention, feed_forward, latent, norm, recurrent

RMS = Norm("rmsnorm", 1e-5)
SWIGLU = FeedForward(40, "silu", gated=True)
LAYERS = {
    attention.Attention: Attention(4, 2, 8).ops("a"),
    latent.LatentAttention: LatentAttention(4, 28, 20, 12, 8, 10, RMS).ops("a"),
    feed_forward.FeedForward: SWIGLU.ops("mlp"),
    feed_forward.MixtureOfExperts: MixtureOfExperts(SWIGLU, 8, 2, shared=SWIGLU).ops("mlp"),
    recurrent.Mamba2: Mamba2(8, 8, 12, 2, 4, norm=RMS).ops("m"),
    recurrent.GatedDeltaNet: GatedDeltaNet(2, 6, 8, 10, 3, RMS).ops("m"),
    norm.RMSNorm: (norm_op(RMS, "norm"),),
}


def symbol(letter: str) -> sympy.Expr:
    """An axis; G is written as N / K."""
    return sympy.Symbol("N") / sympy.Symbol("K") if letter == "G" else sympy.Symbol(letter)


def stated(layer: type, what: str) -> sympy.Expr:
    found = re.search(rf"{what}: ([^.]+)\.", layer.__doc__)
    assert found, f"{layer.__name__}: its docstring states no {what}"
    letters = {letter: sympy.Symbol(letter) for letter in re.findall(r"[A-Za-z]", found[1])}
    return sympy.sympify(found[1].replace("·", "*"), locals=letters)


def derived(ops, what: str) -> sympy.Expr:
    if what == "Parameters":
        return sum(prod(map(symbol, tensor.axes)) for op in ops for tensor in op.weights)
    return sum(2 * prod(map(symbol, op.multiplied)) for op in ops if op.multiplied)


@pytest.mark.parametrize("what", ["Parameters", "FLOPs"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_a_docstrings_formula_is_what_archcalc_derives(layer, what):
    assert sympy.expand(stated(layer, what) - derived(LAYERS[layer], what)) == 0
    assert "arXiv" in (layer.__doc__ + __import__(layer.__module__, fromlist=["_"]).__doc__)


def test_a_wrong_formula_is_seen():
    wrong = type("Wrong", (), {"__doc__": "Parameters: 2·D·H·(N + 2·K)."})
    assert sympy.expand(stated(wrong, "Parameters") - derived(LAYERS[attention.Attention], "Parameters")) != 0
