"""Models small enough to be compared number by number, one for each thing a config can say."""

import torch

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

RMS, LAYER = Norm("rmsnorm", 1e-5), Norm("layernorm", 1e-5)
SWIGLU = FeedForward(40, "silu", gated=True)
GPT_ATTENTION = Attention(4, 4, 4, True, True, True, True)
LLAMA_ATTENTION = Attention(4, 2, 8, rotary=Rotary(10000.0))


def llama_like(attention=LLAMA_ATTENTION, mlp=SWIGLU, tied=False, layers=2) -> ModelConfig:
    block = Block(attention, mlp, RMS)
    return ModelConfig(61, 16, 64, Stack((block,) * layers, RMS), tie_word_embeddings=tied)


def gpt_like() -> ModelConfig:
    block = Block(GPT_ATTENTION, FeedForward(64, "gelu_tanh", bias=True), LAYER)
    return ModelConfig(61, 16, 64, Stack((block,) * 2, LAYER), position_embedding="learned", tie_word_embeddings=True)


def windowed() -> ModelConfig:
    """A sliding window in every second layer, and other rotary frequencies there."""
    window = Attention(4, 1, 8, rotary=Rotary(500.0, RopeScaling("linear", 2.0)), sliding_window=3)
    blocks = tuple(Block(attention, SWIGLU, RMS) for attention in (window, LLAMA_ATTENTION, window))
    return ModelConfig(61, 16, 64, Stack(blocks, RMS))


def encoder_decoder(placement="post", share=True) -> ModelConfig:
    both = Attention(4, 4, 4, True, True, True, True, causal=False)
    mlp, pre = FeedForward(32, "relu", bias=True), placement == "pre"
    encoder = Block(both, mlp, LAYER, placement)
    decoder = Block(GPT_ATTENTION, mlp, LAYER, placement, cross_attn=both)
    return ModelConfig(
        *(61, 16, 64),
        decoder=Stack((decoder,) * 2, LAYER if pre else None),
        encoder=Stack((encoder,) * 3, LAYER if pre else None),
        position_embedding="learned" if pre else "sinusoidal",
        tie_word_embeddings=share,
        share_embeddings=share,
        scale_embedding=not pre,
    )


DECODER_ONLY = {
    "gpt": gpt_like(),
    "llama": llama_like(),
    "moe": llama_like(mlp=MixtureOfExperts(SWIGLU, 4, 2)),
    "window": windowed(),
    "llama3-rope": llama_like(Attention(4, 2, 8, rotary=Rotary(100.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 16)))),
    "post-norm": ModelConfig(61, 16, 64, Stack((Block(LLAMA_ATTENTION, SWIGLU, RMS, "post"),) * 2, None)),
}
ENCODER_DECODER = {"post-sinusoidal": encoder_decoder(), "pre-learned": encoder_decoder("pre", share=False)}


def lively(config: ModelConfig, seed=0):
    """A model with weights large enough that attention is far from uniform and a mistake shows in the logits."""
    model = models.build(config, seed=seed)
    for parameter in dict(model.named_parameters()).values():
        if parameter.ndim == 2:
            parameter.mul_(15)
    return model


def ids(batch: int, tokens: int, seed=0) -> torch.Tensor:
    return torch.randint(0, 61, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance=1e-5):
    """Equal to `tolerance` of the largest expected magnitude."""
    assert actual.shape == expected.shape
    worst, scale = (actual - expected).abs().max().item(), expected.abs().max().item()
    assert worst <= tolerance * scale, f"differs by {worst:.3g}, at a scale of {scale:.3g}"
