"""model_type deberta-v2 (and DeBERTa-v3): BERT with attention by content and distance.

Source: He et al. 2020, arXiv:2006.03654; 2021, arXiv:2111.09543; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Embedding, Norm, Stack
from archcalc.errors import one_of
from archcalc.families import encoder
from archcalc.keys import Keys
from archcalc.parts.disentangled import Disentangled

ALIASES = {"head_dim": ("attention_head_size",)}
IGNORED = encoder.IGNORED | {"legacy", "pooler_dropout", "pooler_hidden_act", "conv_act", "conv_groups"}
RELEASE = {
    "deberta-v2": {
        "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
        "intermediate_size": 6144, "max_position_embeddings": 512,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("conv_kernel_size", 0, "a convolution beside the first layer is not understood")
    for name in ("embedding_size", "pooler_hidden_size"):
        k.must_be(name, k.int("hidden_size"), "a width of its own is not understood")
    stack, norm = encoder.post_norm_encoder(k, eps=1e-7)
    learned = k.bool("position_biased_input", default=True)
    return encoder.encoder_model(
        k,
        _by_distance(k, stack, norm),
        encoder.task_head(k, norm, pooler=False),
        position_embedding="learned" if learned else "none",
        embedding=Embedding(type_vocab_size=k.count("type_vocab_size", default=0), norm=norm),
    )


def _by_distance(k: Keys, stack: Stack, norm: Norm) -> Stack:
    """The stack with scores by distance, if it has them."""
    normed = k.choice("norm_rel_ebd", {"none": None, "layer_norm": norm}, default="none")
    kinds = k.raw.get("pos_att_type") or []
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if type(kinds) is str else kinds
    for kind in kinds:
        one_of("pos_att_type", kind, ("c2p", "p2c"))
    k.used.add("pos_att_type")
    buckets, most = _positive(k, "position_buckets"), _positive(k, "max_relative_positions")
    shared = k.bool("share_att_key", default=False)
    if not k.bool("relative_attention", default=False):
        k.must_be("norm_rel_ebd", "none", "there is no table to norm without relative_attention")
        return stack
    part = Disentangled(
        2 * (buckets or most or k.int("max_position_embeddings")), "c2p" in kinds, "p2c" in kinds, shared
    )
    rest, first = part, replace(part, owner=True, norm=normed)
    made = [
        replace(block, self_attn=replace(block.self_attn, disentangled=by))
        for block, by in zip(stack.layers, (first, *[rest] * (len(stack.layers) - 1)), strict=True)
    ]
    return Stack((made[0], *made[1:2] * (len(made) - 1)), stack.final_norm)


def _positive(k: Keys, name: str) -> int | None:
    """A size for which -1 means none."""
    k.used.add(name)
    return None if k.raw.get(name) in (None, -1, 0) else k.int(name)
