"""The op list against what torch counts while a reference model runs, and against the bytes of its caches."""

from dataclasses import replace

import pytest
import torch
from contract import counted, predicted

import models
from archcalc import blocks, cost
from archcalc.cost import bound, cache_elements
from archcalc.ops import activation, weight
from archcalc.presets import preset
from models import Cache, CrossCache

SMALL = {"vocab_size": 96, "max_position_embeddings": 64}
DECODERS = {
    "gpt2": ("gpt2", SMALL | {"n_embd": 48, "n_head": 4, "n_layer": 2}),
    "grouped gpt2": ("gpt2", SMALL | {"n_embd": 48, "n_head": 4, "n_layer": 2, "num_key_value_heads": 2}),
    "llama": ("tiny-decoder", SMALL),
    "multi-query": ("tiny-decoder", SMALL | {"num_key_value_heads": 1}),
    "multi-head, T = S and D = N·H": ("tiny-decoder", SMALL | {"num_key_value_heads": 4}),
    "wide heads": ("tiny-decoder", SMALL | {"head_dim": 48}),
    "biases": ("tiny-decoder", SMALL | {"attention_bias": True, "mlp_bias": True}),
    "windows": ("tiny-decoder", SMALL | {"model_type": "mistral", "sliding_window": 5}),
    "mixture": ("mixtral-8x7b", SMALL | {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_local_experts": 4}),
    "smollm2": ("smollm2-135m", SMALL | {"num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 96}),
    "every residual": ("tiny-decoder", SMALL | {
        "value_residual": True, "unet_residual": True, "deepnorm": True, "num_hidden_layers": 5}),
    "llama 3.1": ("llama3.1-405b", SMALL | {
        "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 16, "intermediate_size": 160}),
}  # fmt: skip
TRANSLATORS = {
    "2017": ("tiny-encoder-decoder", SMALL),
    "pre-norm": ("tiny-encoder-decoder", SMALL | {"norm_placement": "pre", "encoder_layers": 3}),
    "learned": ("tiny-encoder-decoder", SMALL | {"static_position_embeddings": False, "decoder_ffn_dim": 80}),
}
SHAPES = [(1, 16), (2, 7), (3, 64)]  # of the second, T is neither a power of two nor any other size


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 96, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request):
    config = preset(*DECODERS[request.param])
    return config, models.build(config)


@pytest.fixture(scope="module", params=TRANSLATORS)
def translator(request):
    config = preset(*TRANSLATORS[request.param])
    return config, models.build(config)


@pytest.mark.parametrize(("B", "T"), SHAPES)
def test_prefill(decoder, B, T):
    config, model = decoder
    flops, _ = counted(model, ids(B, T))
    assert flops == predicted(config, B=B, T=T, S=T)


@pytest.mark.parametrize(("B", "T"), [(1, 16), (2, 7)])
def test_prefill_and_decode_into_a_static_cache(decoder, B, T):
    """The eager model multiplies the whole capacity, masked or not: S = C, dense."""
    config, model = decoder
    cache = Cache.empty(config, B, 40)
    flops, _ = counted(model, ids(B, T), cache=cache)
    assert flops == predicted(config, B=B, T=T, S=40)
    for tokens in (1, 1, 5):  # a chunk as well
        flops, _ = counted(model, ids(B, tokens), cache=cache)
        assert flops == predicted(config, B=B, T=tokens, S=40)


@pytest.mark.parametrize(("B", "T"), SHAPES)
def test_the_head_on_the_last_position_alone(decoder, B, T):
    config, model = decoder
    trunk, x_BTD = counted(model.trunk, ids(B, T))
    head, _ = counted(model.head, x_BTD[:, -1:])
    assert trunk + head == predicted(config, B=B, T=T, S=T, R=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_bytes(decoder, dtype):
    """The reference cache is static: C slots in every layer. A logical one keeps no more than the window."""
    config, _ = decoder
    window = config.decoder.layers[0].self_attn.sliding_window
    for B, C in ((1, 1), (3, 5), (2, 40)):
        reserved = Cache.empty(config, B, C, dtype=dtype).nbytes
        assert cache_elements(bound(config)[1], B, C, static=True)[:2] == (reserved // dtype.itemsize, 0)
        kept = C if window is None else min(C, window)
        assert cache_elements(bound(config)[1], B, C)[0] * dtype.itemsize * C == reserved * kept


@pytest.mark.parametrize(("B", "X", "T"), [(1, 16, 16), (2, 7, 13), (3, 64, 1)])
def test_encode_and_decode(translator, B, X, T):
    config, model = translator
    flops, cross = counted(model.encode, ids(B, X))
    assert flops == predicted(config, once=True, B=B, T=X, S=X)
    flops, _ = counted(model.decode, ids(B, T), cross)
    assert flops == predicted(config, B=B, T=T, S=T, X=X)
    cache = Cache.empty(config, B, 30)
    for tokens in (3, 1, 1):
        flops, _ = counted(model.decode, ids(B, tokens), cross, cache)
        assert flops == predicted(config, B=B, T=tokens, S=30, X=X)


@pytest.mark.parametrize(("B", "X", "C"), [(1, 16, 16), (2, 7, 13)])
def test_both_caches(translator, B, X, C):
    config, model = translator
    cross = model.encode(ids(B, X))
    assert isinstance(cross, CrossCache)
    own_elements, cross_elements, _ = cache_elements(bound(config)[1], B, C, X)
    assert cross.nbytes == 4 * cross_elements
    assert Cache.empty(config, B, C).nbytes == 4 * own_elements


# The contract can fail.


WRONG = {
    "another axis of the weight": ("self_attn.q_proj", lambda op: replace(op, inputs=(op.inputs[0], weight("DKH")))),
    "an axis too few": ("mlp.up_proj", lambda op: replace(op, inputs=(activation("BT"), weight("F")))),
    "an axis too many": ("mlp.down_proj", lambda op: replace(op, inputs=(*op.inputs, activation("BTS")))),
    "a factor lost because two axes have one size": (
        "self_attn.scores", lambda op: replace(op, inputs=(activation("BTKGH"), activation("BTKH")),
                                               output=activation("BTKG"), mask=None)),
    "an op that gathers where it should multiply": (
        "lm_head", lambda op: replace(op, gather="V", indices="BR")),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_contraction_is_seen(monkeypatch, case):
    name, change = WRONG[case]
    config = preset(*DECODERS["llama"])
    flops, _ = counted(models.build(config), ids(2, 8))
    assert flops == predicted(config, B=2, T=8, S=8)
    every = blocks.groups(config)
    wrong = [g._replace(ops=tuple(change(op) if op.name == name else op for op in g.ops)) for g in every]
    assert wrong != list(every)
    monkeypatch.setattr(cost, "groups", lambda config: tuple(wrong))
    assert flops != predicted(preset(*DECODERS["llama"]), B=2, T=8, S=8)


def test_a_wrong_model_is_seen():
    config, other = preset(*DECODERS["llama"]), preset(*DECODERS["multi-query"])
    flops, _ = counted(models.build(other), ids(1, 8))
    assert flops != predicted(config, B=1, T=8, S=8)


def test_causal_counting_is_less_than_what_an_eager_model_multiplies():
    config = preset(*DECODERS["llama"])
    flops, _ = counted(models.build(config), ids(1, 8))
    causal = cost.total(cost.passes(config, 1, 8, 8)[0]).flops
    layers, width, masked_pairs = 2, 64, 8 * 7 // 2
    assert flops - causal == layers * 2 * 2 * width * masked_pairs
