"""What a model is: frozen dataclasses whose fields carry the names of Hugging Face `config.json` keys.

A `ModelConfig` has one or two stacks, a stack has blocks, a block has an attention (or two) and a
feed-forward. Everything else (counts, formulas, the PyTorch model, the ONNX graph) is derived from it.
Two layers of one kind are the same `Block`, so `Counter(stack.layers)` groups them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from archcalc.errors import ConfigError, one_of

Value = TypeVar("Value")
LARGEST = 2**31 - 1  # no size of a real model reaches it; keeps a hostile file from asking for more


def positive(**sizes: int) -> None:
    """Raise ConfigError unless each size is an int in 1..2^31-1."""
    for name, value in sizes.items():
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise ConfigError(f"{name}={value!r}: must be a whole number from 1 to {LARGEST}; give a positive integer")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts (counts do not depend on it).

    Source: Llama 3.1's published config (`llama3`); Chen et al. 2023, arXiv:2306.15595 (`linear`).
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self):
        one_of("rope_scaling.rope_type", self.rope_type, ("linear", "llama3"))
        if not self.factor >= 1:
            raise ConfigError(f"rope_scaling.factor={self.factor!r}: must be at least 1; remove rope_scaling for none")


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of queries and keys, over the whole head. Source: arXiv:2104.09864."""

    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None

    def __post_init__(self):
        if not 0 < self.rope_theta < float("inf"):
            raise ConfigError(f"rope_theta={self.rope_theta!r}: must be a positive number; 10000.0 is usual")


@dataclass(frozen=True)
class Attention:
    """Multi-head (K = N), grouped-query (1 < K < N) or multi-query (K = 1) attention.

    `sliding_window` W: a query sees itself and the W - 1 tokens before it. `causal` is false in an encoder.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    rotary: Rotary | None = None
    sliding_window: int | None = None
    causal: bool = True

    def __post_init__(self):
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        positive(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=self.head_dim)
        if heads % kv_heads:
            raise ConfigError(
                f"num_key_value_heads={kv_heads}: must divide num_attention_heads={heads}; "
                f"use one of {', '.join(str(k) for k in range(1, min(heads, 1024) + 1) if heads % k == 0)}"
            )
        if self.sliding_window is not None:
            positive(sliding_window=self.sliding_window)
            if not self.causal:
                raise ConfigError(
                    f"sliding_window={self.sliding_window} with causal=False: a window looks back only; drop one"
                )
        if self.rotary and self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim}: rotary positions turn pairs; give an even head_dim")


@dataclass(frozen=True)
class FeedForward:
    """Two matrices (`gated` false) or three: act(x·up)·down, or (act(x·gate) * x·up)·down.

    SwiGLU is gated `silu`, GeGLU is gated `gelu`. Source: Shazeer 2020, arXiv:2002.05202.
    """

    intermediate_size: int
    hidden_act: str
    gated: bool = False
    bias: bool = False

    def __post_init__(self):
        positive(intermediate_size=self.intermediate_size)
        one_of("hidden_act", self.hidden_act, ("relu", "gelu", "gelu_tanh", "silu"))


@dataclass(frozen=True)
class MixtureOfExperts:
    """A router sends each token to `num_experts_per_tok` of `num_local_experts` equal feed-forwards."""

    expert: FeedForward
    num_local_experts: int
    num_experts_per_tok: int

    def __post_init__(self):
        positive(num_local_experts=self.num_local_experts, num_experts_per_tok=self.num_experts_per_tok)
        if self.num_experts_per_tok > self.num_local_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: larger than num_local_experts="
                f"{self.num_local_experts}; a token cannot go to more experts than there are"
            )
        if self.expert.bias:
            raise ConfigError("bias=True in an expert: experts with biases are not counted yet; set mlp_bias=false")


@dataclass(frozen=True)
class Norm:
    """LayerNorm (weight and bias) or RMSNorm (weight), with its epsilon."""

    kind: str
    eps: float

    def __post_init__(self):
        one_of("norm", self.kind, ("layernorm", "rmsnorm"))
        if not 0 < self.eps < 1:
            raise ConfigError(f"norm eps={self.eps!r}: must lie between 0 and 1; 1e-05 is usual")


@dataclass(frozen=True)
class Block:
    """Self-attention, then cross-attention where there is one, then the feed-forward.

    Each has its own norm and residual: `pre` computes x + f(norm(x)), `post` norm(x + f(x)).
    """

    self_attn: Attention
    mlp: FeedForward | MixtureOfExperts
    norm: Norm
    norm_placement: str = "pre"
    cross_attn: Attention | None = None

    def __post_init__(self):
        one_of("norm_placement", self.norm_placement, ("pre", "post"))
        if self.cross_attn and self.cross_attn.causal:
            raise ConfigError("cross_attn.causal=True: every source token is visible; build it with causal=False")


@dataclass(frozen=True)
class Stack:
    """Blocks from the first to the last, then `final_norm` where there is one."""

    layers: tuple[Block, ...]
    final_norm: Norm | None

    def __post_init__(self):
        if not self.layers:
            raise ConfigError("num_hidden_layers=0: a stack needs a block; give at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """A whole decoder-only (`encoder` is None) or encoder-decoder model.

    Args:
        position_embedding: vectors added to the embeddings: `learned` (a table of
            `max_position_embeddings` rows a stack), `sinusoidal` (computed, no parameters) or
            `none` (rotary positions live in the attention).
        tie_word_embeddings: the head reuses the embedding matrix. An encoder and its decoder share one
            embedding when `share_embeddings`.
        scale_embedding: embeddings are multiplied by sqrt(hidden_size), as in the 2017 model.
        name: what reports call it.
        keys: the Hugging Face keys it was read from; no part of what it is.
    """

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    decoder: Stack
    encoder: Stack | None = None
    position_embedding: str = "none"
    tie_word_embeddings: bool = False
    share_embeddings: bool = True
    scale_embedding: bool = False
    name: str = field(default="model", compare=False)
    keys: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        positive(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_position_embeddings=self.max_position_embeddings,
        )
        one_of("position_embedding", self.position_embedding, ("learned", "sinusoidal", "none"))
        if self.position_embedding == "sinusoidal" and self.hidden_size % 2:
            raise ConfigError(f"hidden_size={self.hidden_size}: sinusoids come in pairs; give an even hidden_size")
        for block in set(self.decoder.layers):
            if bool(block.cross_attn) != bool(self.encoder):
                raise ConfigError(
                    "cross_attn: every decoder block has one if and only if the model has an encoder; add or drop it"
                )
        for block in set(self.encoder.layers) if self.encoder else ():
            if block.cross_attn or block.self_attn.causal:
                raise ConfigError("encoder block: must have causal=False and no cross_attn; build it so")

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stacks by name, in the order in which they run."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack}


def once_a_config(function: Callable[[ModelConfig], Value]) -> Callable[[ModelConfig], Value]:
    """Compute a function of a config when first asked for, and keep the answer with that (frozen) config."""
    name = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def kept(config: ModelConfig) -> Value:
        if name not in config.__dict__:
            config.__dict__[name] = function(config)
        return config.__dict__[name]

    return kept
