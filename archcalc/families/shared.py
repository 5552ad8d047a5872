"""What the families have in common: parts and stacks from canonical keys. Defaults of absent keys are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archcalc.config import (
    PLACEMENTS,
    Attention,
    Block,
    FeedForward,
    HyperConnections,
    Mixer,
    MixtureOfExperts,
    Norm,
    Residual,
    Stack,
)
from archcalc.errors import ConfigError
from archcalc.keys import Keys

MOST_LAYERS = 10_000  # a hundred times the deepest published model; refused before anything is allocated

# Hugging Face activation names. gelu_new and gelu_pytorch_tanh are one formula: Hendrycks & Gimpel, arXiv:1606.08415.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"


def layer_count(k: Keys, name: str = "num_hidden_layers") -> int:
    """The number of blocks, 1..10,000."""
    depth = k.int(name)
    if depth > MOST_LAYERS:
        raise ConfigError(f"{name}={depth}: more than {MOST_LAYERS}; give at most that many")
    return depth


def head_dim(k: Keys, heads: int) -> int:
    """The width of a head, given or hidden_size / num_attention_heads where that is whole."""
    given, hidden = k.int("head_dim", default=None), k.int("hidden_size")
    if given is None and hidden % heads:
        raise ConfigError(
            f"num_attention_heads={heads} with hidden_size={hidden}: head_dim would be {hidden / heads:g}; "
            "give head_dim or fix hidden_size"
        )
    return given or hidden // heads


def default_head(k: Keys, width: int) -> int | None:
    """head_dim where an absent key means `width` and a null hidden_size / num_attention_heads (None)."""
    return None if k.given("head_dim") else k.int("head_dim", default=width)


def attention(k: Keys, *, bias: bool = False, kv_heads=None, head=None, window=None, kv=None, **parts: Any):
    """Self- or cross-attention.

    Args:
        bias, kv_heads: the family's defaults of `attention_bias` and `num_key_value_heads` (None: one a query head).
        head, kv: head_dim and num_key_value_heads where the family fixes them.
        parts: further fields of Attention; `q_bias` and its like overrule `attention_bias`.
    """
    heads = k.int("num_attention_heads")
    # Hugging Face reads null as "as many as query heads" also where the default of an absent key is a number.
    kv = kv or k.int("num_key_value_heads", default=heads if k.given("num_key_value_heads") else kv_heads or heads)
    biased = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias"), k.bool("attention_bias", default=bias))
    return Attention(heads, kv, head or head_dim(k, heads), sliding_window=window, **(biased | parts))


def feed_forward(k: Keys, *, act: str, gated: bool, bias: bool = False, size=None, name="intermediate_size"):
    """`act`, `bias` and `size` are the family's defaults; without a size, the key `name` of the width is required."""
    width = k.int(name, default=size) if size else k.int(name)
    hidden_act = k.choice("hidden_act", ACTIVATIONS, default=act)
    return FeedForward(width, hidden_act, gated, k.bool("mlp_bias", default=bias))


def layer_types(k: Keys, depth: int, default: tuple[str, ...] | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """`layer_types`, one a layer, or the family's default."""
    types = k.strings("layer_types", allowed)
    if types is None:
        return default
    if len(types) != depth:
        raise ConfigError(
            f"layer_types of {len(types)} entries with num_hidden_layers={depth}: one entry a layer; give {depth}"
        )
    return types


def layer_windows(k: Keys, depth: int, default: int | None, types: tuple[str, ...] | None = None) -> tuple:
    """The sliding window of each layer, None where a layer sees everything.

    Args:
        default: the family's `sliding_window`. types: its layer_types; None: every layer has the window.
    """
    window = k.int("sliding_window", default=None if k.given("sliding_window") else default)
    types = layer_types(k, depth, types, (FULL, SLIDING))
    if types is None:
        return (window,) * depth
    if window is None and SLIDING in types:
        raise ConfigError("layer_types='sliding_attention': needs a window; give sliding_window, a count of tokens")
    return tuple(window if kind == SLIDING else None for kind in types)


def periodic_windows(k: Keys, window: int, period: int) -> tuple:
    """The window of each layer; each `sliding_window_pattern`-th has none. Arguments are the family's defaults."""
    depth, period = layer_count(k), k.int("sliding_window_pattern", default=period)
    if k.given("layer_types"):
        k.used.add("_sliding_window_pattern")  # how those types were once made
    return layer_windows(k, depth, window, every(period, FULL, SLIDING, depth))


def every_layer_is(k: Keys, *names: str) -> None:
    """Refuse `layer_types` that name anything but the one kind of layer that this family has, under these names."""
    layer_types(k, layer_count(k), None, names)


def every(period: int, rare: str, common: str, depth: int) -> tuple[str, ...]:
    """Layer types of which each `period`-th is the rare one: c c r c c r for 3."""
    return tuple(common if (layer + 1) % period else rare for layer in range(depth))


def same(part: Any) -> Callable[[int], Any]:
    """The same part in every layer."""
    return lambda layer: part


def residuals(k: Keys, depth: int, hyper: HyperConnections | None = None) -> Callable[[int], Residual]:
    """What each layer does to its residual stream beside adding to it: canonical keys that any family may carry."""
    alpha = (2 * depth) ** 0.25 if k.bool("deepnorm", default=False) else 1.0  # arXiv:2203.00555, table of section 4
    value, unet = k.bool("value_residual", default=False), k.bool("unet_residual", default=False)
    streams = k.int("hc_mult", default=None)
    hyper = HyperConnections(streams) if streams else hyper

    def residual(layer: int) -> Residual:
        return Residual(alpha, value and layer > 0, unet and layer >= (depth + 1) // 2, hyper)

    return residual


def stack(depth: int, block: Callable[[int], Block], final_norm: Norm | None) -> Stack:
    """The blocks of a stack; layers of one kind share one object."""
    found: dict[Block, Block] = {}
    blocks = [block(layer) for layer in range(depth)]
    return Stack(tuple(found.setdefault(one, one) for one in blocks), final_norm)


def decoder(
    k: Keys,
    mixer: Callable[[int], Mixer | None],
    mlp: Callable[[int], FeedForward | MixtureOfExperts | None],
    norm: Norm,
    placement: str = "pre",
    parallel: str | None = None,
) -> Stack:
    """The stack of a decoder-only model. A post-norm stack has no final norm.

    Args:
        mixer, mlp: the parts of a layer, by its index.
        placement: the family's default of `norm_placement`.
    """
    placement = k.choice("norm_placement", {name: name for name in PLACEMENTS}, default=placement)
    residual = residuals(k, depth := layer_count(k))

    def block(layer: int) -> Block:
        return Block(mixer(layer), mlp(layer), norm, placement, None, parallel, residual(layer))

    return stack(depth, block, None if placement == "post" else norm)


def windowed(k: Keys, windows: tuple, full: dict | None = None, **parts: Any) -> Callable[[int], Attention]:
    """The attention of each layer, which differ in their window.

    Args:
        windows: of each layer, None where it sees everything. full: parts in which those without a window differ.
    """
    parts_of = {window: parts if window else parts | (full or {}) for window in dict.fromkeys(windows)}
    made = {window: attention(k, window=window, **own) for window, own in parts_of.items()}
    return lambda layer: made[windows[layer]]


def model(k: Keys, stack: Stack, *, tie: bool, positions=None, **fields: Any) -> dict:
    """ModelConfig fields of a decoder-only model; `tie` and `positions` are the family's defaults, `fields` more."""
    k.must_be("is_encoder_decoder", False, "this family has a decoder only")
    context = k.int("max_position_embeddings", default=positions) if positions else k.int("max_position_embeddings")
    return {
        "vocab_size": k.int("vocab_size"),
        "hidden_size": k.int("hidden_size"),
        "max_position_embeddings": context,
        "decoder": stack,
        "tie_word_embeddings": k.bool("tie_word_embeddings", default=tie),
    } | fields


def predictors(k: Keys, name: str = "num_nextn_predict_layers") -> tuple[str, ...]:
    """What `left_out` says of the layers that predict further tokens, of which the key gives the number."""
    count = k.count(name, default=0)
    words = "layers that predict" if count > 1 else "layer that predicts"
    return (f"{count} {words} further tokens ({name})",) if count else ()


def stack_keys(k: Keys, per_stack: dict, side: int) -> Keys:
    """The keys of the encoder (side 0) or the decoder (side 1), to be read under canonical names.

    A canonical key speaks for each stack that has no key of its own. The Hugging Face classes make it another
    name of the encoder's key, so there the two must agree; in the decoder the own key wins.
    """
    own = {canonical: (names[side],) for canonical, names in per_stack.items()}
    hidden = {c for c, (name,) in own.items() if side and k.raw.get(name) is not None}
    return k.view({n: v for n, v in k.raw.items() if n not in hidden}, k.aliases | own)
