"""What encoder-decoder families have in common: two stacks from the keys of each, or of both.

A canonical key (`num_hidden_layers`) speaks for each stack that has no key of its own (`decoder_layers`).
`sliding_window` narrows the decoder's self-attention; encoder and cross-attention see every source token.
"""

from __future__ import annotations

from collections.abc import Callable

from archcalc.config import Attention, Block, FeedForward, MixtureOfExperts, Norm, Stack
from archcalc.families.shared import attention, feed_forward, layer_count, layer_windows, stack, stack_keys
from archcalc.keys import Keys

ALIASES = {"hidden_size": ("d_model",), "hidden_act": ("activation_function",)}
PER_STACK = {
    "num_hidden_layers": ("encoder_layers", "decoder_layers"),
    "num_attention_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "intermediate_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
}
# Switches of the first releases (fairseq's), which the Hugging Face class of a model type fixes.
IGNORED = frozenset({
    "classif_dropout", "force_bos_token_to_be_generated", "forced_decoder_ids", "unk_token_id", "num_labels",
    "extra_pos_embeddings", "kobart_version", "save_step", "_num_labels", "decoder_attention_dropout",
})  # fmt: skip
FeedForwards = Callable[[int], FeedForward | MixtureOfExperts]


def two_stacks(
    k: Keys,
    norm: Norm,
    placement: str,
    final_norm: Norm | None,
    mlp: Callable[[Keys, int], FeedForwards] | None = None,
    *,
    act: str = "gelu",
    **parts,
) -> tuple[Stack, Stack]:
    """The encoder and the decoder.

    Args:
        mlp: from the keys of a stack and its side (0 the encoder, 1 the decoder) to the feed-forward of a layer;
            None: a dense one with biases and the family's default activation `act`.
        parts: further fields of Attention, of all three kinds of it.
    """
    sides = tuple(stack_keys(k, PER_STACK, side) for side in (0, 1))
    parts = {"bias": True} | parts

    def blocks(side: int, windows: tuple, cross: Attention | None) -> Stack:
        k = sides[side]
        dense = None if mlp else feed_forward(k, act=act, gated=False, bias=True)
        made = mlp(k, side) if mlp else lambda layer: dense
        own = {w: attention(k, window=w, causal=cross is not None, **parts) for w in dict.fromkeys(windows)}

        def block(layer: int) -> Block:
            return Block(own[windows[layer]], made(layer), norm, placement, cross)

        return stack(len(windows), block, final_norm)

    encoder, decoder = sides
    cross = attention(decoder, causal=False, **parts)
    windows = layer_windows(decoder, layer_count(decoder), None)
    return blocks(0, (None,) * layer_count(encoder), None), blocks(1, windows, cross)


def pair_model(k: Keys, stacks: tuple[Stack, Stack], *, tie: bool | None = True, **fields) -> dict:
    """ModelConfig fields of an encoder-decoder whose stacks share their embedding.

    Args:
        tie: the family's default of `tie_word_embeddings`; None: the class ties three matrices or keeps four.
        fields: more of them, among them the positions.
    """
    if "is_encoder_decoder" not in k.used:
        k.must_be("is_encoder_decoder", True, "this family has an encoder and a decoder")
    if tie is None:
        k.must_be("tie_word_embeddings", True, "a matrix of its own for each stack is not understood")
    return {
        "vocab_size": k.int("vocab_size"),
        "hidden_size": k.int("hidden_size"),
        "encoder": stacks[0],
        "decoder": stacks[1],
        "tie_word_embeddings": True if tie is None else k.bool("tie_word_embeddings", default=tie),
        "scale_embedding": k.bool("scale_embedding", default=False),
    } | fields
