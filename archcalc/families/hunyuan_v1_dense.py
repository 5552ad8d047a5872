"""model_type hunyuan_v1_dense: the llama block with normed queries and keys.

Source: Tencent 2025, Hunyuan dense models.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
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
    return rotary_decoder(k, mlp, positions=2048, norm=norm, qk_norm=norm)
