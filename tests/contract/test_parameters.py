"""The op list against the reference models: every parameter's name, shape and count, for every preset."""

from dataclasses import replace

import pytest
import torch
from contract import actual_parameters, differences, expected_parameters

import models
from archcalc import blocks, cost
from archcalc.blocks import Group
from archcalc.config import Norm
from archcalc.cost import parameters
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from archcalc.ops import Op, activation, weight
from archcalc.presets import names, preset
from models.builder import skeleton
from models.supported import unbuilt

OWN = {
    "model_type": "transformer", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 80,
}  # fmt: skip
VARIANTS = {
    "untied gpt2": ("gpt2", {"tie_word_embeddings": False, "n_layer": 2}),
    "grouped gpt2": ("gpt2", {"num_key_value_heads": 4, "n_layer": 2}),
    "biased llama": ("tiny-decoder", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": ("tiny-decoder", {"head_dim": 48}),
    "tied llama": ("tiny-decoder", {"tie_word_embeddings": True}),
    "post-norm llama": ("tiny-decoder", {"norm_placement": "post"}),
    "two kinds of layers": ("tiny-decoder", {
        "model_type": "mistral", "sliding_window": 9, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "every residual": ("tiny-decoder", {
        "value_residual": True, "unet_residual": True, "deepnorm": True, "num_hidden_layers": 5}),
    "latent attention without a rank": (None, OWN | {
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}),
    "gates, sinks and norms": (None, OWN | {
        "output_gate": "head", "attention_sinks": True, "qk_norm": "all", "norm": "layernorm",
        "norm_placement": "sandwich", "embedding_norm": True, "lm_head_bias": True}),
    "pre-norm translator": ("tiny-encoder-decoder", {"norm_placement": "pre"}),
    "learned positions": ("tiny-encoder-decoder", {"static_position_embeddings": False}),
    "unshared embeddings": ("tiny-encoder-decoder", {"share_encoder_decoder_embeddings": False}),
    "untied translator": ("tiny-encoder-decoder", {"tie_word_embeddings": False}),
    "unequal stacks": ("tiny-encoder-decoder", {"encoder_layers": 3, "decoder_ffn_dim": 96}),
}  # fmt: skip
BUILT = [name for name in names() if unbuilt(preset(name)) is None]


def config_of(name: str):
    """The preset; of one with thousands of experts, which are modules, a layer of each kind."""
    base, keys = VARIANTS.get(name, (name, {}))
    config = preset(base, keys) if base else config_from_keys(keys)
    layers = config.decoder.layers if config.decoder else ()
    experts = sum(getattr(block.mlp, "num_local_experts", 0) for block in layers)
    if experts > 1000:
        config = replace(config, decoder=replace(config.decoder, layers=tuple(dict.fromkeys(layers))))
    return config


def disagreements(config, model=None) -> list[str]:
    model = model or models.build(config, device="meta")
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    return differences(expected_parameters(config), actual_parameters(model))


@pytest.mark.parametrize("name", [*BUILT, *VARIANTS])
def test_names_shapes_and_counts_agree(name):
    config = config_of(name)
    model = models.build(config, device="meta")
    assert disagreements(config, model) == []
    assert parameters(config) == sum(p.numel() for p in model.parameters())


def test_most_kinds_of_block_are_built_or_named():
    assert {"gpt2", "llama3-8b", "mixtral-8x7b", "transformer-base", "mistral-7b-v0.1"} <= set(BUILT)
    assert {"deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "nemotron-h-56b", "bert-base", "t5-small"} <= set(BUILT)
    assert len(BUILT) >= 150


@pytest.mark.parametrize("name", [name for name in names() if name not in BUILT])
def test_a_preset_that_is_not_built_is_refused_in_one_line_that_names_the_part(name):
    part = unbuilt(preset(name))
    with pytest.raises(ConfigError) as refused:
        skeleton(preset(name))
    assert str(refused.value).startswith(f"{part}: counted, but not built")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder-decoder"])
def test_a_model_with_memory_has_the_same_names_as_one_on_meta(name):
    config = preset(name)
    real = models.build(config)
    assert all(torch.isfinite(parameter).all() for parameter in real.parameters())
    assert differences(expected_parameters(config), actual_parameters(real)) == []


# The contract can fail: each test breaks one side and sees it.

WRONG = {
    "another size": (
        "self_attn.k_proj",
        lambda op: replace(op, inputs=(activation("BTD"), weight("DNH"))),
        "layers.0.self_attn.k_proj.weight: the calculator has (64, 64), the model (32, 64)",
    ),
    "transposed": (
        "mlp.up_proj",
        lambda op: replace(op, inputs=(activation("BTF"), weight("DF"))),
        "layers.0.mlp.up_proj.weight: the calculator has (64, 176), the model (176, 64)",
    ),
    "a bias too many": (
        "self_attn.o_proj",
        lambda op: replace(op, inputs=(*op.inputs, weight("D"))),
        "layers.1.self_attn.o_proj.bias: the calculator has (64,), the model nothing",
    ),
    "a weight forgotten": (
        "mlp_norm",
        lambda op: replace(op, inputs=(activation("BTD"),)),
        "layers.0.mlp_norm.weight: the model has (64,), the calculator nothing",
    ),
    "another name": (
        "mlp.gate_proj",
        lambda op: replace(op, name="mlp.gate"),
        "layers.1.mlp.gate.weight: the calculator has (176, 64), the model nothing",
    ),
}


def with_op(every: tuple[Group, ...], name: str, change) -> tuple[Group, ...]:
    """The groups with one op changed."""

    def op(found: Op) -> Op:
        return change(found) if found.name == name else found

    return tuple(group._replace(ops=tuple(map(op, group.ops))) for group in every)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_op_is_seen(monkeypatch, case):
    name, change, message = WRONG[case]
    every = blocks.groups(preset("tiny-decoder"))
    monkeypatch.setattr(cost, "groups", lambda config: with_op(every, name, change))
    assert message in disagreements(preset("tiny-decoder"))


def test_a_wrong_number_of_layers_is_seen():
    config = preset("tiny-decoder")
    model = models.build(preset("tiny-decoder", {"num_hidden_layers": 3}), device="meta")
    found = differences(expected_parameters(config), actual_parameters(model))
    assert len(found) == 9
    assert all("layers.2." in line and "the calculator nothing" in line for line in found)


def test_a_wrong_model_is_seen():
    config = preset("tiny-decoder")
    block = replace(config.decoder.layers[0], norm=Norm("layernorm", 1e-5))
    other = replace(config, decoder=replace(config.decoder, layers=(block,) * 2))
    found = differences(expected_parameters(config), actual_parameters(models.build(other, device="meta")))
    assert len(found) == 4
    assert all("norm.bias: the model has (64,)" in line for line in found)
