"""The formula behind each number: substituted, it must give the very integer of the report."""

from functools import cache

import pytest
import sympy
from representatives import one_a_type

from archcalc import symbolic
from archcalc.cost import Pass, bound, cache_elements, parameters, total
from archcalc.derivation import derivation
from archcalc.presets import preset
from archcalc.symbolic import derive

REQUESTS = [  # B, T, S, X, R
    (1, 1, 1, 1, 1),
    (3, 1, 129, 17, 1),
    (2, 64, 64, 33, 64),
    (5, 7, 90, 250, 1),
]
WINDOWED = {
    "mistral": ("llama3-8b", {"model_type": "mistral", "sliding_window": 50}),
    "mixed": ("tiny-decoder", {"model_type": "mistral", "sliding_window": 9, "num_hidden_layers": 3,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
}  # fmt: skip
MODELS = [*one_a_type(), *WINDOWED]
DENSE = {"gpt2", "llama2-7b", "mixtral-8x7b", "transformer-base", "deepseek-v3", *WINDOWED}  # no mask is left to differ


def config_of(name: str):
    return preset(*WINDOWED[name]) if name in WINDOWED else preset(name)


@cache
def derived(name: str, dense: bool = False):
    return derive(config_of(name), dense)


def of_model(formulas) -> dict:
    return {f.quantity: f for f in formulas if f.subject == "model"}


def integer(expression) -> int:
    assert isinstance(expression, sympy.Integer), expression
    return int(expression)


@pytest.mark.parametrize("name", MODELS)
def test_formulas_give_the_integers_of_the_report(name):
    config = config_of(name)
    once, step = bound(config)
    for dense in (False, True) if name in DENSE else (False,):
        found = of_model(derived(name, dense)[0])
        assert integer(found["parameters"].at()) == parameters(config)
        for B, T, S, X, R in REQUESTS[2:] if dense else REQUESTS:
            run = Pass("", {"B": B, "T": T, "S": S, "X": X, "R": R}, step)
            assert integer(found["FLOPs a pass (B, T, S)"].at(**run.dims)) == total(run, dense).flops
            held = sum(cache_elements(step, B, S, X))
            kept = found["cache and state elements (B, S)"].at(**run.dims) if held else sympy.Integer(0)
            assert integer(kept) == held
            if once.lines:
                encode = Pass("", {"B": B, "T": X, "S": X}, once)
                assert integer(found["FLOPs a source (B, X)"].at(B=B, X=X)) == total(encode, dense).flops


def test_causal_and_dense_formulas_differ_in_attention_alone():
    causal, dense = (of_model(derive(preset("llama3-8b"), flag)[0])["FLOPs a pass (B, T, S)"] for flag in (False, True))
    hidden = dense.at(B=1, T=10, S=10, R=10) - causal.at(B=1, T=10, S=10, R=10)
    assert hidden == 2 * 2 * 4096 * 32 * (10 * 9 // 2)


@pytest.mark.parametrize("name", MODELS)
def test_formulas_of_blocks_add_up_to_the_model(name):
    """Blocks times their layers, and what lies outside of them: embeddings, final norm, head."""
    config = config_of(name)
    formulas, _ = derived(name)
    blocks = {f.subject: f.at() for f in formulas if f.quantity == "parameters" and f.subject != "model"}
    lines = [line for part in bound(config) for line in part.lines]
    counts = {line.group.block: line.count for line in lines if line.group.block}
    outside = sum(line.params for line in lines if not line.group.block)
    assert sum(counts[label] * value for label, value in blocks.items()) + outside == parameters(config)


def test_the_formula_is_in_symbols_and_the_legend_explains_each():
    for name in MODELS:
        formulas, legend = derived(name)
        for formula in formulas:
            unknown = formula.expression.free_symbols - set(legend) - set(symbolic.RUNTIME.values())
            assert not unknown, (name, formula.quantity, unknown)


def test_one_formula_by_hand():
    found = of_model(derive(preset("llama3-8b"))[0])
    D, N, K, H, F, V, L = sympy.symbols("D N K H F V L", integer=True, positive=True)
    by_hand = L * (2 * D * N * H + 2 * D * K * H + 3 * D * F + 2 * D) + 2 * V * D + D
    assert sympy.expand(found["parameters"].expression - by_hand) == 0


def test_a_wrong_op_changes_the_formula(monkeypatch):
    """The two algebras share the op list; with another op list both must move."""
    before = of_model(derive(preset("tiny-decoder"))[0])["parameters"].at()
    config = preset("tiny-decoder")
    every = symbolic.groups(config)
    monkeypatch.setattr(symbolic, "groups", lambda config: every[:-1])
    assert of_model(derive(config)[0])["parameters"].at() == before - 256 * 64


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "transformer-base", "mixed"])
def test_derivations_name_conventions_values_and_symbols(name):
    config = config_of(name)
    text, dense = derivation(config), derivation(config, dense=True)
    assert f"= {parameters(config):,}" in text
    assert "visible pairs only" in text
    assert "every pair" in dense
    assert f"hidden_size = {config.hidden_size:,}" in text
    assert "\\[" in derivation(config, latex=True)
    assert "\\[" not in text


def test_the_text_of_a_window_names_the_queries_that_are_not_full():
    config = preset("tiny-decoder", {"sliding_window": 64})
    text = derivation(config)
    line = next(line for line in text.splitlines() if line.strip().startswith("2*B*(3*D*F*T"))
    m = "Max(0, Min(T, -S + T + W))"
    assert f"with m = {m}, the queries whose window is not full" in text
    symbols = {name: sympy.Symbol(name, integer=True, positive=True) for name in "BTSXRDNKHFLVWM"}
    shown = sympy.sympify(line, locals=symbols | {"m": sympy.sympify(m, locals=symbols)})
    full = next(f for f in derive(config)[0] if f.quantity == "FLOPs a pass (B, T, S)").expression
    assert sympy.expand(shown - full) == 0
