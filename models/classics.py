"""Three models, written out: what the parts of `archcalc.config` are for."""

from __future__ import annotations

from archcalc.config import (
    Attention,
    Block,
    Embedding,
    FeedForward,
    Head,
    ModelConfig,
    Norm,
    RopeScaling,
    Rotary,
    Stack,
)


def transformer_2017() -> ModelConfig:
    """The base model of "Attention Is All You Need": two stacks, a norm after each sum. arXiv:1706.03762, table 3."""
    norm, mlp = Norm("layernorm", 1e-5), FeedForward(2048, "relu", bias=True)
    masked = Attention(8, 8, 64, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    open_ = Attention(8, 8, 64, q_bias=True, k_bias=True, v_bias=True, o_bias=True, causal=False)
    encoder, decoder = Block(open_, mlp, norm, "post"), Block(masked, mlp, norm, "post", cross_attn=open_)
    return ModelConfig(
        *(37000, 512, 512),
        encoder=Stack((encoder,) * 6, None),
        decoder=Stack((decoder,) * 6, None),
        position_embedding="sinusoidal",
        embedding=Embedding(sinusoid_halves=True),
        scale_embedding=True,
        tie_word_embeddings=True,
        head=Head(buffer_bias=True),  # as Marian stores it; of zeros, it is the paper's head
        name="transformer-base",
    )


def gpt2() -> ModelConfig:
    """GPT-2 small: the decoder alone, norms before the sublayers, learned positions. Radford et al. 2019."""
    attention = Attention(12, 12, 64, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    norm = Norm("layernorm", 1e-5)
    block = Block(attention, FeedForward(3072, "gelu_tanh", bias=True), norm)
    stack = Stack((block,) * 12, norm)
    return ModelConfig(50257, 768, 1024, stack, position_embedding="learned", tie_word_embeddings=True, name="gpt2")


def llama3_8b() -> ModelConfig:
    """Llama 3.1 8B: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases. arXiv:2407.21783, table 3."""
    attention = Attention(32, 8, 128, rotary=Rotary(500000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)))
    norm = Norm("rmsnorm", 1e-5)
    block = Block(attention, FeedForward(14336, "silu", gated=True), norm)
    return ModelConfig(128256, 4096, 131072, Stack((block,) * 32, norm), name="llama3.1-8b")
