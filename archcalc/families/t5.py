"""model_type t5 (and ByT5), mt5, umt5 and switch_transformers: encoder-decoders whose positions bias the scores.

RMSNorm in front of everything, no biases, heads of `d_kv`, scores that are not scaled. The first layer of a stack owns
the bias by distance and the others use it; in umt5 each has its own. The head is tied unless tie_word_embeddings says
false: released checkpoints of the gated kind store a head, though transformers 5 ties it whatever the key says.
Source: Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202; Fedus et al. 2021, arXiv:2101.03961; Chung
et al. 2023, arXiv:2304.09151; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Attention, Block, FeedForward, Head, MixtureOfExperts, Norm, Stack
from archcalc.errors import ConfigError
from archcalc.families.encoder import task
from archcalc.families.pair import FeedForwards, pair_model
from archcalc.families.shared import ACTIVATIONS, attention, layer_count, stack
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
    "head_dim": ("d_kv",),
    "intermediate_size": ("d_ff",),
    "max_position_embeddings": ("n_positions",),
}
IGNORED = frozenset({
    "dropout_rate", "initializer_factor", "scalable_attention", "expert_capacity",
    "router_jitter_noise", "router_dtype", "router_ignore_padding_tokens", "router_z_loss_coef", "router_type",
    "router_aux_loss_coef", "add_router_probs", "output_router_logits", "batch_prioritized_routing", "num_labels",
    "encoder_sparse_step", "decoder_sparse_step",
})  # fmt: skip
NAMES = ("vocab_size", "hidden_size", "head_dim", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _sizes(*values: int) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True)) | {"relative_attention_num_buckets": 32}


MULTILINGUAL = _sizes(250112, 512, 64, 1024, 8, 6)
SWITCH = {"num_experts": 8, "num_decoder_layers": 12, "num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3}
RELEASE = {
    "t5": _sizes(32128, 512, 64, 2048, 6, 8),
    "mt5": MULTILINGUAL,
    "umt5": MULTILINGUAL,
    "switch_transformers": _sizes(32128, 768, 64, 2048, 12, 12) | SWITCH,
}
SPARSE = ("num_sparse_encoder_layers", "num_sparse_decoder_layers")


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("rmsnorm", k.float("layer_norm_epsilon", default=1e-6))
    depth = layer_count(k)
    if "num_decoder_layers" in k.release:
        depths = depth, layer_count(k, "num_decoder_layers")
    else:
        depths = depth, k.int("num_decoder_layers", default=depth)
    cross = attention(k, head=k.int("head_dim"), causal=False, scale=1.0)
    stacks = tuple(_stack(k, side, depths[side], norm, cross if side else None) for side in (0, 1))
    encoder_only = task(k, "ForConditionalGeneration") == "EncoderModel"
    # No table of positions: the key only says for what length the model was trained.
    fields = {"max_position_embeddings": k.int("max_position_embeddings", default=512), "head": _head(k)}
    if encoder_only:
        k.used.add("is_encoder_decoder")  # says what the whole model is, or what this class is
        return pair_model(k, stacks, **fields) | {"decoder": None, "head": Head("none")}
    return pair_model(k, stacks, **fields)


def _head(k: Keys) -> Head:
    """A tied head reads scaled states; `scale_decoder_outputs` may say otherwise, and mt5 never does it."""
    scaled = k.bool("scale_decoder_outputs", default=k.bool("tie_word_embeddings", default=True))
    return Head(scale=k.int("hidden_size") ** -0.5 if scaled and k.str("model_type") != "mt5" else 1.0)


def _stack(k: Keys, side: int, depth: int, norm: Norm, cross: Attention | None) -> Stack:
    kind, buckets = k.str("model_type"), k.int("relative_attention_num_buckets")
    mlp = _switch(k, side, depth) if kind == "switch_transformers" else _dense(k)
    parts = {"head": k.int("head_dim"), "causal": bool(side), "scale": 1.0}
    parts |= {"relative_max_distance": k.int("relative_attention_max_distance", default=128)}
    first = attention(k, relative_buckets=buckets, **parts)
    rest = first if kind == "umt5" else attention(k, relative_buckets=0, **parts)
    return stack(depth, lambda i: Block(rest if i else first, mlp(i), norm, "pre", cross), norm)


def _dense(k: Keys) -> FeedForwards:
    """The feed-forward that `feed_forward_proj` describes: `relu`, `gated-gelu` and the like."""
    described = k.str("feed_forward_proj", default="relu" if k.str("model_type") == "t5" else "gated-gelu")
    gated, act = described.startswith("gated-"), described.removeprefix("gated-")
    if act not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        raise ConfigError(f"feed_forward_proj={described[:60]!r}: not understood; use gated-X or X of {choices}")
    k.must_be("is_gated_act", gated, "feed_forward_proj says otherwise")
    act = k.choice("dense_act_fn", ACTIVATIONS, default="gelu_new" if described == "gated-gelu" else act)
    mlp = FeedForward(k.int("intermediate_size"), act, gated)
    return lambda layer: mlp


def _switch(k: Keys, side: int, depth: int) -> FeedForwards:
    """Dense ones with mixtures of one expert a token among them, the second of so many layers."""
    k.must_be("feed_forward_proj", "relu")
    k.must_be("is_gated_act", False)
    dense = FeedForward(k.int("intermediate_size"), k.choice("dense_act_fn", ACTIVATIONS, default="relu"))
    parts = {"router_bias": k.bool("router_bias", default=False), "norm_topk_prob": False}
    mixture = MixtureOfExperts(dense, k.int("num_experts"), 1, **parts)
    few = k.count(SPARSE[side])
    step = depth // few if few else depth
    return lambda layer: mixture if step == 1 or (step and layer % step == 1) else dense
