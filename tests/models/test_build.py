from dataclasses import replace

import pytest
import torch
from tiny_models import DECODER_ONLY, ENCODER_DECODER, LAYER, LLAMA_ATTENTION, RMS, SWIGLU, ids, llama_like

import models
from archcalc.config import (
    Attention,
    Block,
    FeedForward,
    MixtureOfExperts,
    ModelConfig,
    Norm,
    RopeScaling,
    Rotary,
    Stack,
)
from archcalc.errors import ArchcalcError, ConfigError

LLAMA_MLP = FeedForward(14336, "silu", gated=True)


def llama(hidden, heads, ffn, layers, vocab=128256, positions=8192):
    block = Block(Attention(heads, 8, 128, rotary=Rotary(500000.0)), FeedForward(ffn, "silu", gated=True), RMS)
    return ModelConfig(vocab, hidden, positions, Stack((block,) * layers, RMS))


def numel(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_llama_3_8b_has_its_published_size():
    model = models.build(llama(4096, 32, 14336, 32), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())  # nothing is allocated
    assert numel(model) == 8_030_261_248
    assert numel(model.layers[0]) == 218_112_000


def test_gpt2_small_has_its_published_size():
    attention = Attention(12, 12, 64, True, True, True, True)
    block = Block(attention, FeedForward(3072, "gelu_tanh", bias=True), LAYER)
    config = ModelConfig(
        50257, 768, 1024, Stack((block,) * 12, LAYER), position_embedding="learned", tie_word_embeddings=True
    )
    model = models.build(config, device="meta")
    assert numel(model) == 124_439_808
    assert model.lm_head.weight is model.embed_tokens.weight


def test_the_largest_models_build_and_run_without_memory():
    model = models.build(llama(16384, 128, 53248, 126, positions=131072), device="meta", dtype=torch.bfloat16)
    assert numel(model) == 405_853_388_800
    cache = models.Cache.empty(model.config, 1, 131072, torch.bfloat16, "meta")
    assert cache.nbytes == 2 * 126 * 8 * 131072 * 128 * 2
    logits = model(torch.zeros(1, 3, dtype=torch.long, device="meta"), cache=cache)
    assert logits.shape == (1, 3, 128256) and logits.dtype == torch.bfloat16
    block = Block(Attention(32, 8, 128, rotary=Rotary(1e6)), MixtureOfExperts(LLAMA_MLP, 8, 2), RMS)
    mixtral = models.build(ModelConfig(32000, 4096, 32768, Stack((block,) * 32, RMS)), device="meta")
    assert numel(mixtral) == 46_702_792_704


@pytest.mark.parametrize("config", [*DECODER_ONLY.values(), *ENCODER_DECODER.values()])
def test_random_weights_are_seeded_finite_and_no_accident(config):
    model, again, other = (models.build(config, seed=seed) for seed in (0, 0, 1))
    inputs = (ids(2, 6),) if config.encoder is None else (ids(2, 6), ids(2, 6, seed=1))
    logits = model(*inputs)
    assert torch.equal(logits, again(*inputs)) and not torch.equal(logits, other(*inputs))
    assert logits.isfinite().all() and logits.std() > 1e-3
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_dtype_and_fp32_tables():
    model = models.build(DECODER_ONLY["llama"], dtype=torch.float16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert model(ids(1, 4)).dtype == torch.float16
    assert model.rotary(model.layers[0].self_attn.config, 1, "cpu")[0].dtype == torch.float32
    full = models.build(DECODER_ONLY["llama"])
    assert torch.allclose(model(ids(1, 9)).float(), full(ids(1, 9)), atol=2e-3)


def test_names_of_a_mixture_and_of_a_gpt():
    names = dict(models.build(DECODER_ONLY["moe"], device="meta").named_parameters())
    assert names["layers.1.mlp.router.weight"].shape == (4, 16)
    assert names["layers.1.mlp.experts.3.down_proj.weight"].shape == (16, 40)
    gpt = dict(models.build(DECODER_ONLY["gpt"], device="meta").named_parameters())
    assert gpt["embed_positions.weight"].shape == (64, 16)
    assert "layers.0.mlp.up_proj.bias" in gpt and "layers.0.mlp.gate_proj.weight" not in gpt
    assert "lm_head.weight" not in gpt and "norm.bias" in gpt


BAD_GROUPS = {"n_group": 2, "topk_group": 3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mlp": MixtureOfExperts(SWIGLU, 8, 2, scoring="sigmoid", **BAD_GROUPS)}, "topk_group=3 of n_group=2 of 8"),
        ({"mlp": MixtureOfExperts(SWIGLU, 7, 2, n_group=2)}, "topk_group=1 of n_group=2 of 7 experts"),
        (
            {"mlp": MixtureOfExperts(SWIGLU, 8, 3, n_group=4, topk_group=1)},
            "topk_group=1 of n_group=4 of 8 experts, 3 a",
        ),
        ({"mlp": MixtureOfExperts(SWIGLU, 4, 1, n_group=4, topk_group=2)}, "topk_group=2 of n_group=4 of 4 experts"),
        ({"mlp": MixtureOfExperts(SWIGLU, 4, 1, n_group=0)}, "topk_group=1 of n_group=0"),
        ({"mlp": MixtureOfExperts(SWIGLU, 4, 1, topk_group=0)}, "topk_group=0 of n_group=1"),
        ({"mlp": MixtureOfExperts(SWIGLU, 60_001, 2)}, "num_local_experts: 120,002 experts in all layers, more than"),
        (
            {"attention": Attention(4, 2, 8, causal=False, alibi=True)},
            "a window, or a bias by distance, that looks both",
        ),
        (
            {"mlp": MixtureOfExperts(SWIGLU, 4, 2, router_scales=True)},
            "MixtureOfExperts.router_scales: counted",
        ),
        ({"attention": Attention(4, 2, 8, rotary=Rotary(1e4, RopeScaling("longrope", 4.0)))}, "longrope without its"),
        ({"attention": Attention(4, 2, 8, rotary=Rotary(1e4, RopeScaling("dynamic", 4.0)))}, "rope_type='dynamic'"),
        ({"attention": Attention(4, 2, 8, shares_cache=True)}, "Attention.shares_cache"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change, says):
    with pytest.raises(ConfigError) as refused:
        models.build(llama_like(**change), device="meta")
    assert str(refused.value).startswith(says)


def test_random_norms_are_the_identity_also_where_weights_lie_around_zero():
    norm = Norm("rmsnorm", 1e-5, offset=1.0)
    block = Block(LLAMA_ATTENTION, SWIGLU, norm)
    model = models.build(ModelConfig(61, 16, 64, Stack((block,), norm)))
    x = torch.randn(1, 3, 16)
    assert torch.equal(model.norm.weight, torch.zeros(16))
    assert torch.allclose(model.norm(x).square().mean(-1), torch.ones(1, 3), atol=1e-3)


def test_rotary_tables_are_as_long_as_needed_and_not_as_the_config_says():
    endless = models.build(replace(DECODER_ONLY["llama"], max_position_embeddings=2**31 - 1))
    short = models.build(DECODER_ONLY["llama"])
    assert torch.equal(endless(ids(1, 9)), short(ids(1, 9)))
    assert {len(tables[0]) for tables in endless._tables.values()} == {16}


def test_positions_beyond_the_model_are_refused():
    model = models.build(DECODER_ONLY["gpt"])
    with pytest.raises(ArchcalcError, match="65 tokens: more than max_position_embeddings=64"):
        model(ids(1, 1), torch.tensor([[64]]))
    cache = models.Cache.empty(model.config, 1)
    model(ids(1, 60), cache=cache)
    with pytest.raises(ArchcalcError, match="max_position_embeddings=64: this pass needs 66"):
        model(ids(1, 6), cache=cache)


def test_a_growing_cache_takes_padding_in_front_only():
    model = models.build(DECODER_ONLY["llama"])
    cache = models.Cache.empty(model.config, 2)
    model(ids(2, 4), cache=cache)
    with pytest.raises(ArchcalcError, match="pad prompts in front"):
        model(ids(2, 1), torch.tensor([[4], [2]]), cache)


@pytest.mark.parametrize("capacity", [None, 8])
def test_a_pass_that_is_refused_leaves_the_cache_as_it_was(capacity):
    model = models.build(replace(DECODER_ONLY["llama"], max_position_embeddings=8))
    cache, tokens = models.Cache.empty(model.config, 1, capacity), ids(1, 8)
    model(tokens[:, :5], cache=cache)
    with pytest.raises(ArchcalcError):
        model(tokens[:, :4], cache=cache)
    assert torch.allclose(model(tokens[:, 5:], cache=cache), model(tokens)[:, 5:], atol=1e-6)


def test_positions_in_cross_attention_are_refused():
    config = ENCODER_DECODER["pre-learned"]
    block = config.decoder.layers[0]
    turned = replace(block, cross_attn=replace(block.cross_attn, rotary=Rotary()))
    with pytest.raises(ConfigError, match="positions in cross-attention: counted"):
        models.build(replace(config, decoder=replace(config.decoder, layers=(turned,))))


def test_values_of_another_width_also_across():
    config = ENCODER_DECODER["pre-learned"]
    block = config.decoder.layers[0]
    wide = replace(block, cross_attn=replace(block.cross_attn, v_head_dim=6))
    model = models.build(replace(config, decoder=replace(config.decoder, layers=(wide,))))
    assert model(ids(2, 5), ids(2, 3)).shape == (2, 3, 61)


def test_the_bias_that_balances_experts_stays_in_fp32():
    mixture = MixtureOfExperts(SWIGLU, 4, 2, correction_bias=True, scoring="sigmoid")
    model = models.build(llama_like(mlp=mixture), dtype=torch.bfloat16)
    assert model.layers[0].mlp.correction_bias.dtype == torch.float32
    assert model(ids(1, 3)).dtype == torch.bfloat16
