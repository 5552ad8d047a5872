"""A training step: FLOPs against 6ND and attention's own count, activation memory against the published formula."""

import pytest

from archcalc.config import Attention, Block, FeedForward, ModelConfig, Norm, Stack, expanded
from archcalc.cost import Pass, bound, parameters, total
from archcalc.counts import parameter_counts
from archcalc.errors import ConfigError
from archcalc.presets import names, preset
from archcalc.training import Step, activations, flops, model_state, rules_of_thumb, training


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("recompute", "linear", "core"), [("none", 3, 3), ("selective", 3, 4), ("full", 4, 4)])
def test_a_step_is_three_forwards_and_what_is_recomputed(name, recompute, linear, core):
    config, B, T = preset(name), 2, 24
    dims = {"B": B, "T": T, "S": T, "R": T, "X": T}
    once, step = bound(expanded(config))
    for dense, key in ((False, "causal"), (True, "dense")):
        forward = sum(total(Pass("", dims, part), dense).flops for part in (once, step))
        found = flops(config, Step(B, T, recompute=recompute))
        assert found[key] == found["products"] + found[f"attention_{key}"]
        assert found["products"] % linear == found[f"attention_{key}"] % core == 0
        assert found["products"] // linear + found[f"attention_{key}"] // core == forward


@pytest.mark.parametrize("name", [n for n in names() if not preset(n).encoder])
def test_six_n_d_is_exact_where_n_are_the_matrices(name):
    config, step = preset(name), Step(3, 32, recompute="none")
    rows = rules_of_thumb(config, step)
    exact = rows.get("matrices of blocks and head, active") or rows["matrices of blocks and head"]
    ops = [line.op for line in bound(expanded(config))[1].lines if line.op.multiplied]
    beside = [op for op in ops if not op.mask and not any(t.role in ("weight", "tied") for t in op.inputs)]
    if not beside:  # products of states, or of residual streams
        assert exact["flops"] == flops(config, step)["products"] == 6 * exact["n"] * 3 * 32
    assert rows["all"]["n"] == parameters(config)
    assert rows["without embedding and head"]["n"] == parameter_counts(config)["without embedding and head"]["total"]


def test_halved_attention_halves_causal_pairs_only():
    found = flops(preset("transformer-base"), Step(1, 64, recompute="none"))
    layer = 12 * 512 * 64 * 64
    assert found["attention_dense"] == 6 * 3 * layer  # encoder, decoder, cross
    assert found["attention_halved"] == 6 * (2 * layer + layer // 2)


def gpt_layer(h: int, a: int, layers: int = 1) -> ModelConfig:
    """The layer of Korthikanti et al. 2022: multi-head attention, a feed-forward of 4h, pre-LayerNorm."""
    norm = Norm("layernorm", 1e-5)
    block = Block(Attention(a, a, h // a), FeedForward(4 * h, "gelu"), norm)
    return ModelConfig(1000, h, 4096, Stack((block,) * layers, norm))


@pytest.mark.parametrize(("s", "b", "h", "a"), [(128, 2, 64, 4), (1024, 1, 768, 12), (2048, 4, 12288, 96)])
@pytest.mark.parametrize("layers", [1, 3])
def test_activations_are_those_of_the_paper(s, b, h, a, layers):
    """34·s·b·h + 5·a·s²·b a layer; 34·s·b·h where attention is recomputed; 2·s·b·h where everything is."""
    config = gpt_layer(h, a, layers)

    def bytes_of(recompute: str, dropout: bool = True) -> int:
        return activations(config, Step(b, s, recompute=recompute, dropout=dropout))["blocks"]

    assert bytes_of("none") == layers * (34 * s * b * h + 5 * a * s * s * b)
    assert bytes_of("selective") == layers * 34 * s * b * h
    assert bytes_of("full") == layers * 2 * s * b * h
    assert bytes_of("none", dropout=False) == layers * (32 * s * b * h + 2 * a * s * s * b)  # no masks


def test_activations_around_the_blocks_are_those_of_the_paper():
    """Dropout's mask behind the embedding s·b·h, the inputs of final norm and head 2·s·b·h each, logits 4·s·b·v."""
    s, b, h = 128, 2, 64
    found = activations(gpt_layer(h, 4), Step(b, s, dropout=True))
    assert found["rest"] == 5 * s * b * h
    assert found["logits"] == 4 * s * b * 1000


def test_grouped_queries_and_a_gate():
    """Llama: inputs of two norms, of qkv, of o and of gate and up: 6D; queries D, keys and values; 3F."""
    config, T = preset("llama3-8b"), 100
    found = activations(config, Step(1, T))["blocks"]
    assert found == 32 * 2 * T * (5 * 4096 + 4096 + 2 * 1024 + 3 * 14336)


def test_a_norm_of_queries_stores_its_input():
    norm = Norm("rmsnorm", 1e-6)

    def stored(**parts) -> int:
        block = Block(Attention(4, 2, 16, **parts), FeedForward(64, "silu", gated=True), norm)
        return activations(ModelConfig(100, 64, 512, Stack((block,), norm)), Step(1, 10))["blocks"]

    assert stored(qk_norm=norm) - stored() == 2 * 10 * (4 + 2) * 16
    assert stored(output_gate="element") - stored() == 2 * 10 * 2 * 64  # its output and what it scales


def test_the_source_is_stored_once_for_all_cross_attentions():
    few, many = (preset("transformer-base", {"decoder_layers": n}) for n in (1, 2))
    step, t = Step(1, 10), 10 * 512
    more = activations(many, step)["blocks"] - activations(few, step)["blocks"]
    # Inputs of three sublayers and their norms; queries, keys, values and context twice; no source.
    assert more == 2 * (3 * 2 * t + 2 * 4 * t + 2 * 10 * 2048)


@pytest.mark.parametrize(
    ("policy", "optimizer", "bytes_each"),
    [
        ("fp32", "adamw", 16),
        ("mixed", "adamw", 16),
        ("mixed-fp32-grad", "adamw", 18),
        ("bf16", "adamw", 8),
        ("mixed", "adam8bit", 10),
        ("mixed", "sgd", 8),
        ("fp32", "sgd", 8),
        ("fp32", "sgd-momentum", 12),
        ("bf16", "sgd-momentum", 6),
        ("bf16", "adam8bit", 6),
    ],
)
def test_bytes_a_parameter(policy, optimizer, bytes_each):
    config = preset("gpt2")
    assert sum(model_state(config, Step(policy=policy, optimizer=optimizer)).values()) == bytes_each * 124_439_808


def test_everything_adds_up():
    found = training(preset("mixtral-8x7b"), Step(2, 64))
    assert found["total_bytes"] == sum(found["bytes"].values())
    assert found["flops"]["causal"] < found["flops"]["dense"]
    assert found["six_n_d"]["all, active"]["n"] == 12_879_925_248


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"policy": "fp8"}, "policy='fp8': not understood; use one of fp32"),
        ({"optimizer": "lion"}, "optimizer='lion': not understood"),
        ({"recompute": "some"}, "recompute='some': not understood"),
        ({"tokens": 1025}, "max_position_embeddings=1024"),
        ({"batch": 0}, "batch=0: must be a whole number"),
    ],
)
def test_what_cannot_be_answered_is_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        training(preset("gpt2"), Step(**asked))
