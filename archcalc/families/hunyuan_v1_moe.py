"""model_type hunyuan_v1_moe: norms of each head; in every layer experts beside a shared one of the same width.

Source: Tencent 2025, "Hunyuan-A13B Technical Report"; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, rms_norm, routed, uniform
from archcalc.families.hunyuan_v1_dense import stretched
from archcalc.families.shared import attention, decoder, model, same
from archcalc.keys import Keys

ALIASES = {
    "head_dim": ("attention_head_dim",),
    "num_local_experts": ("num_experts",),
    "num_experts_per_tok": ("moe_topk",),
}
# Routing of what exceeds a capacity; tokens of other uses; the cache of a shape that `use_cla` turns on.
IGNORED = ROUTING | {
    "moe_drop_tokens", "moe_random_routing_dropped_token", "cla_share_factor", "eod_token_id", "mask_init_id",
    "im_end_id", "im_newline_id", "im_start_id", "image_token_id", "text_end_id", "text_start_id", "video_end_id",
    "video_start_id", "pad_id", "org_vocab_size", "group_limited_greedy", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "class_num", "dense_list", "num_media_embeds", "pool_type",
    "skip_cls_token", "anyres_pooling_size", "vit_add_patchemb_bias", "vit_input_resolution", "vit_mapping_type",
    "vit_norm_type", "vit_patch", "vit_remove_prenorm", "vit_token", "vit_used_rms_norm",
}  # fmt: skip
RELEASE = {
    "hunyuan_v1_moe": {
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, width = rms_norm(k, 1e-5), k.int("intermediate_size")
    for name, allowed in (("use_cla", False), ("use_mla", False), ("use_qk_norm", True), ("use_mixed_mlp_moe", True)):
        k.must_be(name, allowed)
    for name in ("add_classification_head", "position_embedding_xdrope", "anyres_vit_two_views"):
        k.must_be(name, False)
    for name in ("vit_type", "vit_path"):  # the text models of this type have no tower
        k.must_be(name, None)
    k.must_be("norm_type", "rms")
    k.must_be("use_rotary_pos_emb", True)
    k.must_be("moe_layer_num_skipped", 0)
    # The widths of experts are those of the dense layer; lists say so once a layer.
    for name, allowed in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if uniform(k, name, allowed) != allowed:
            k.must_be(name, allowed)
    counts = uniform(k, "num_local_experts", 1), uniform(k, "num_experts_per_tok", 1)
    mixer = attention(k, rotary=stretched(k), qk_norm=norm)
    experts = routed(k, "intermediate_size", shared=width, counts=counts)
    return model(k, decoder(k, same(mixer), same(experts), norm), tie=False)
