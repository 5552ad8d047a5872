"""model_type hunyuan_v1_dense: the llama block with normed queries and keys.

Source: Tencent 2025, Hunyuan dense models.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Norm, Rotary
from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.rope import rotary
from archcalc.families.shared import feed_forward, head_dim, same
from archcalc.keys import Keys

ALIASES = {"head_dim": ("attention_head_dim",)}
# Layers that share a cache (use_cla says whether any does), the tokens of other inputs, a classification head.
IGNORED = frozenset({
    "cla_share_factor", "org_vocab_size", "add_classification_head", "class_num", "dense_list", "pool_type",
    "eod_token_id", "im_start_id", "im_end_id", "im_newline_id", "image_token_id", "mask_init_id", "num_media_embeds",
    "sep_id", "text_start_id", "text_end_id", "video_start_id", "video_end_id", "pad_id", "skip_cls_token",
    "enable_lm_head_fp32",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.int("pretraining_tp", default=1)  # sums in that many slices; the products are the same
    for name, only in (("use_qk_norm", True), ("use_cla", False), ("use_rotary_pos_emb", True), ("norm_type", "rms")):
        k.must_be(name, only, "the family's class knows nothing else")
    k.must_be("mlp_bias", False, "the family's class knows nothing else")
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="silu", gated=True))
    return rotary_decoder(k, mlp, positions=2048, norm=norm, qk_norm=norm, rotary=stretched(k))


def stretched(k: Keys) -> Rotary:
    """Rotary positions, of which a `dynamic` stretch with an `alpha` only raises the base, once for all lengths."""
    given, turned = k.raw.get("rope_parameters") or k.raw.get("rope_scaling") or {}, rotary(k, 1e4, positions=2048)
    alpha = Keys(given).float("alpha", default=0.0) if type(given) is dict else 0.0
    if not (turned.rope_scaling and turned.rope_scaling.rope_type == "dynamic" and alpha):
        return turned
    width = head_dim(k, k.int("num_attention_heads"))
    if alpha < 0 or width < 4:
        raise ConfigError(f"rope_scaling.alpha={alpha!r} with head_dim={width}: needs a positive one and 4 at least")
    return replace(turned, rope_theta=turned.rope_theta * alpha ** (width / (width - 2)), rope_scaling=None)
