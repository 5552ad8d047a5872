"""What a model is: frozen dataclasses whose fields carry the names of Hugging Face `config.json` keys.

A `ModelConfig` has one or two stacks, a stack has blocks, a block has a mixer and a feed-forward (`archcalc.parts`).
Everything else (counts, formulas, the PyTorch model, the ONNX graph) is derived from it.
Two layers of one kind are the same `Block`, so counting a stack groups them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from archcalc.checks import LARGEST, positive
from archcalc.errors import ConfigError, one_of
from archcalc.ops import Op
from archcalc.parts.attention import Attention
from archcalc.parts.embedding import ConvFrontend, Embedding, Head
from archcalc.parts.feed_forward import FeedForward, MixtureOfExperts
from archcalc.parts.norm import Norm
from archcalc.parts.positions import RopeScaling, Rotary
from archcalc.parts.residual import HyperConnections, Residual

if TYPE_CHECKING:
    from archcalc.quantization import Quantization

__all__ = [
    "LARGEST", "Attention", "Block", "ConvFrontend", "Embedding", "FeedForward", "Head", "HyperConnections", "Mixer",
    "MixtureOfExperts", "ModelConfig", "Norm", "Residual", "RopeScaling", "Rotary", "Stack", "once_a_config",
    "positive",
]  # fmt: skip

Value = TypeVar("Value")
PLAIN, NO_EXTRAS, LM_HEAD = Residual(), Embedding(), Head()

# Mixers that few models have, by the module of `archcalc.parts` that has them; imported when one is asked for.
RARE = {
    "block_sparse": ("BlockIndexer", "BlockSparseAttention"),
    "compressed": ("CompressedAttention",),
    "hybrid": ("Both", "GatedLinearRecurrence", "ShortConvolution"),
    "latent": ("Indexer", "LatentAttention"),
    "recurrent": ("GatedDeltaNet", "KimiDelta", "LightningAttention", "Mamba", "Mamba2", "Recurrent"),
}


def __getattr__(name: str) -> type:
    for module, classes in RARE.items():
        if name in classes:
            return getattr(import_module(f"archcalc.parts.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Mixer(Protocol):
    """What mixes the tokens of a block: attention, or what stands for it.

    `module` is what it is called in a block, `self_attn` or, where it keeps a state of fixed size, `mixer`.
    """

    causal: bool
    module: str

    @property
    def dims(self) -> dict[str, int]: ...

    def ops(self, name: str) -> tuple[Op, ...]: ...


# Which norms a sublayer has (before it, after it), and whether the one after it sees the residual sum or only f(x).
PLACEMENTS = ("pre", "post", "inner", "sandwich", "none")


@dataclass(frozen=True)
class Block:
    """A mixer (`self_attn`), then cross-attention where there is one, then the feed-forward; either may be absent.

    Args:
        norm_placement: `pre` computes x + f(norm(x)), `post` norm(x + f(x)), `inner` x + norm(f(x)), `sandwich`
            x + norm(f(norm(x))), `none` x + f(x).
        repeated: it runs the weights of an earlier block (ALBERT).
        parallel: attention and feed-forward read the same input and are summed: behind one norm (`shared`) or behind
            a norm each (`own`); None: one after the other.
    """

    self_attn: Mixer | None
    mlp: FeedForward | MixtureOfExperts | None
    norm: Norm
    norm_placement: str = "pre"
    cross_attn: Attention | None = None
    parallel: str | None = None
    residual: Residual = PLAIN
    repeated: bool = False

    def __post_init__(self):
        one_of("norm_placement", self.norm_placement, PLACEMENTS)
        one_of("parallel", self.parallel, (None, "shared", "own"))
        if self.cross_attn and self.cross_attn.causal:
            raise ConfigError("cross_attn.causal=True: every source token is visible; build it with causal=False")
        if self.self_attn is None and self.mlp is None:
            raise ConfigError("self_attn=None with mlp=None: a block does nothing; give one of them")
        if self.parallel and (self.norm_placement != "pre" or not (self.self_attn and self.mlp) or self.cross_attn):
            raise ConfigError(
                f"parallel={self.parallel!r}: needs norm_placement='pre', attention and feed-forward and no "
                "cross-attention; drop it"
            )


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
    """A whole decoder-only (`encoder` is None), encoder-only (`decoder` is None) or encoder-decoder model.

    Args:
        position_embedding: vectors added to the embeddings: `learned` (a table of
            `max_position_embeddings` rows a stack), `sinusoidal` (computed, no parameters) or
            `none` (rotary positions live in the attention).
        max_source_positions: positions of the encoder where it has another number of them.
        tie_word_embeddings: the head reuses the embedding matrix. An encoder and its decoder share one
            embedding when `share_embeddings`.
        scale_embedding: embeddings are multiplied by sqrt(hidden_size), as in the 2017 model.
        frontend: what feeds the encoder in place of a token embedding.
        left_out: what the config describes and this model does not count, each in words: a vision tower, layers that
            predict several tokens.
        quantization: how its checkpoint stores the matrices; no count depends on it.
        name: what reports call it.
        keys: the Hugging Face keys it was read from; no part of what it is.
        assumed: keys that were absent and took the default of the Hugging Face class, which is a released model.
    """

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    decoder: Stack | None
    encoder: Stack | None = None
    position_embedding: str = "none"
    tie_word_embeddings: bool = False
    share_embeddings: bool = True
    scale_embedding: bool = False
    max_source_positions: int | None = None
    embedding: Embedding = NO_EXTRAS
    head: Head = LM_HEAD
    frontend: ConvFrontend | None = None
    left_out: tuple[str, ...] = ()
    quantization: Quantization | None = None
    name: str = field(default="model", compare=False)
    keys: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    assumed: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self):
        positive(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_position_embeddings=self.max_position_embeddings,
        )
        one_of("position_embedding", self.position_embedding, ("learned", "sinusoidal", "none"))
        if self.position_embedding == "sinusoidal" and self.hidden_size % 2:
            raise ConfigError(f"hidden_size={self.hidden_size}: sinusoids come in pairs; give an even hidden_size")
        if not self.stacks:
            raise ConfigError("decoder=None with encoder=None: a model has a stack; give one")
        for block in set(self.decoder.layers) if self.decoder else ():
            if bool(block.cross_attn) != bool(self.encoder):
                raise ConfigError(
                    "cross_attn: every decoder block has one if and only if the model has an encoder; add or drop it"
                )
        for block in set(self.encoder.layers) if self.encoder else ():
            if block.cross_attn or (block.self_attn and block.self_attn.causal):
                raise ConfigError("encoder block: must have causal=False and no cross_attn; build it so")

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stacks by name, in the order in which they run."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack}

    def source_tokens(self, prompt: Any) -> Any:
        """What the encoder gets of a prompt: whole frames of sound, or the prompt's tokens."""
        return self.frontend.tokens if self.frontend else prompt


def once_a_config(function: Callable[[ModelConfig], Value]) -> Callable[[ModelConfig], Value]:
    """Compute a function of a config when first asked for, and keep the answer with that (frozen) config."""
    name = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def kept(config: ModelConfig) -> Value:
        if name not in config.__dict__:
            config.__dict__[name] = function(config)
        return config.__dict__[name]

    return kept


@once_a_config
def expanded(config: ModelConfig) -> ModelConfig:
    """The same model whose latent attention makes the keys and values of all heads, as a prefill does."""
    return _with_form(config, "expanded")


def _with_form(config: ModelConfig, form: str) -> ModelConfig:
    found: dict[int, Block] = {}
    for block in config.decoder.layers if config.decoder else ():
        if getattr(block.self_attn, "form", form) != form:
            found.setdefault(id(block), replace(block, self_attn=replace(block.self_attn, form=form)))
    if not found:
        return config
    layers = tuple(found.get(id(block), block) for block in config.decoder.layers)
    return replace(config, decoder=Stack(layers, config.decoder.final_norm))
