"""What the families have in common: attention, feed-forward and the stack of a decoder, from canonical keys."""

from __future__ import annotations

from archcalc.config import Attention, Block, FeedForward, Norm, RopeScaling, Rotary, Stack
from archcalc.errors import ConfigError
from archcalc.keys import Keys

MOST_LAYERS = 10_000  # a hundred times the deepest published model; refused before anything is allocated

# Hugging Face activation names. gelu_new and gelu_pytorch_tanh are one formula: Hendrycks & Gimpel, arXiv:1606.08415.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
}
PLACEMENTS = {"pre": "pre", "post": "post"}


def layer_count(k: Keys) -> int:
    """The number of blocks, 1..10,000."""
    depth = k.int("num_hidden_layers")
    if depth > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers={depth}: more than {MOST_LAYERS}; give at most that many")
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


def attention(k: Keys, *, bias: bool, kv_heads=None, rotary=None, window=None, causal=True) -> Attention:
    """Self- or cross-attention; `bias` and `kv_heads` are the family's defaults (kv_heads None: one a query head)."""
    heads = k.int("num_attention_heads")
    # Hugging Face reads null as "as many as query heads" also where the default of an absent key is a number.
    kv_heads = k.int("num_key_value_heads", default=heads if k.given("num_key_value_heads") else kv_heads or heads)
    bias = k.bool("attention_bias", default=bias)
    return Attention(heads, kv_heads, head_dim(k, heads), bias, bias, bias, bias, rotary, window, causal)


def feed_forward(k: Keys, *, act: str, gated: bool, bias: bool, size=None) -> FeedForward:
    """`act`, `bias` and `size` are the family's defaults; without a size, intermediate_size is required."""
    width = k.int("intermediate_size", default=size) if size else k.int("intermediate_size")
    hidden_act = k.choice("hidden_act", ACTIVATIONS, default=act)
    return FeedForward(width, hidden_act, gated, k.bool("mlp_bias", default=bias))


def layer_windows(k: Keys, depth: int, default: int | None) -> tuple:
    """The sliding window of each layer, None where a layer sees everything.

    `layer_types` says which layers have it; without that key every layer does.
    """
    window = k.int("sliding_window", default=None if k.given("sliding_window") else default)
    types = k.strings("layer_types", ("full_attention", "sliding_attention"))
    if types is None:
        return (window,) * depth
    if len(types) != depth:
        raise ConfigError(
            f"layer_types of {len(types)} entries with num_hidden_layers={depth}: one entry a layer; give {depth}"
        )
    if window is None and "sliding_attention" in types:
        raise ConfigError("layer_types='sliding_attention': needs a window; give sliding_window, a count of tokens")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def layers(k: Keys, block, window: int | None = None) -> tuple[Block, ...]:
    """The blocks of a stack; layers of one kind share one object.

    Args:
        block: makes the Block of a sliding window, which may be None.
        window: the family's default of `sliding_window`.
    """
    windows = layer_windows(k, layer_count(k), window)
    blocks = {w: block(w) for w in set(windows)}
    return tuple(blocks[w] for w in windows)


def decoder(k: Keys, *, mlp, norm: Norm, bias: bool, kv_heads=None, rotary=None, window=None) -> Stack:
    """The stack of a decoder-only model. A post-norm stack has no final norm."""
    placement = k.choice("norm_placement", PLACEMENTS, default="pre")

    def block(w: int | None) -> Block:
        return Block(attention(k, bias=bias, kv_heads=kv_heads, rotary=rotary, window=w), mlp, norm, placement)

    return Stack(layers(k, block, window), norm if placement == "pre" else None)


def stack_keys(k: Keys, per_stack: dict, side: int) -> Keys:
    """The keys of the encoder (side 0) or the decoder (side 1), to be read under canonical names.

    A canonical key speaks for each stack that has no key of its own. The Hugging Face classes make it another
    name of the encoder's key, so there the two must agree; in the decoder the own key wins.
    """
    own = {canonical: (names[side],) for canonical, names in per_stack.items()}
    hidden = {c for c, (name,) in own.items() if side and k.raw.get(name) is not None}
    return k.view({n: v for n, v in k.raw.items() if n not in hidden}, k.aliases | own)


def model(k: Keys, stack: Stack, *, tie: bool, positions=None, embedding: str = "none") -> dict:
    """ModelConfig fields of a decoder-only model; `tie` and `positions` are the family's defaults."""
    k.must_be("is_encoder_decoder", False, "this family has a decoder only")
    context = k.int("max_position_embeddings", default=positions) if positions else k.int("max_position_embeddings")
    return {
        "vocab_size": k.int("vocab_size"),
        "hidden_size": k.int("hidden_size"),
        "max_position_embeddings": context,
        "decoder": stack,
        "position_embedding": embedding,
        "tie_word_embeddings": k.bool("tie_word_embeddings", default=tie),
    }


def rotary(k: Keys, theta: float) -> Rotary:
    """Rotary positions from `rope_theta` and `rope_scaling`, or from `rope_parameters` that holds both.

    Args:
        theta: the family's default base.
    """
    old, new = k.nested("rope_scaling"), k.nested("rope_parameters")
    if old and new and old.raw != new.raw:
        raise ConfigError("rope_scaling with rope_parameters: two names of one thing disagree; give only one")
    base = k.float("rope_theta", default=None)
    nested = new or old
    inner = nested.float("rope_theta", default=None) if nested else None
    if None not in (base, inner) and base != inner:
        raise ConfigError(f"rope_theta={base!r} with {nested.prefix}rope_theta={inner!r}: they disagree; give only one")
    base = theta if base is None and inner is None else base if inner is None else inner
    return Rotary(base, _scaling(nested) if nested else None)


def _scaling(k: Keys) -> RopeScaling | None:
    """The stretch of the rotary frequencies; None for type `default`. Other types than these are refused by name."""
    view = k.view(k.raw, {"rope_type": ("type",)})
    kind = view.choice("rope_type", {"default": "default", "linear": "linear", "llama3": "llama3"}, default="default")
    k.must_be("partial_rotary_factor", 1.0)
    scaling = None
    if kind == "linear":
        k.int("original_max_position_embeddings", default=None)  # linear scaling does not depend on it
        scaling = RopeScaling(kind, k.float("factor"))
    elif kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        scaling = RopeScaling(kind, *map(k.float, names), k.int("original_max_position_embeddings"))
    k.finish()
    return scaling
