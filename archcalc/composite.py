"""A config of several models (a language model with towers for images or sound): its language model is counted.

Every part that is set aside is named in `ModelConfig.left_out`; a part nobody knows is refused.
"""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.keys import HARMLESS, HARMLESS_AT, label, shown

# Outer model_type -> the model_type of its text_config where that has none of its own.
COMPOSITES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm4v_moe": "glm4v_moe_text",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "step3p7": "step3p5",
}
TOWERS = {
    "vision_config": "the vision tower (vision_config)",
    "audio_config": "the audio tower (audio_config)",
    "auto_map": "code of its own that auto_map names: it is not read; the model is counted as its model_type says",
}
# Outer keys about the meeting of the parts: token ids and sizes of what is left out.
MEETING = frozenset({
    "image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id", "vision_end_token_id",
    "vision_token_id", "image_token_index", "boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id",
    "boa_token_id", "eoa_token_id", "eoa_token_index", "mm_tokens_per_image", "vision_soft_tokens_per_image",
    "projector_hidden_act", "multimodal_projector_bias", "spatial_merge_size", "vision_feature_layer",
    "img_token_compression_config", "image_grid_pinpoints", "image_seq_length", "video_token_index",
    "num_reward_heads", "process_image_mode", "vision_feature_select_strategy", "projector_hidden_size",
    "image_placeholder", "media_placeholder_token_id", "projection_hidden_size", "projection_layer_norm_eps",
    "ignore_index", "use_unified_vision_chunk", "video_placeholder", "language_model_only", "projector_bias",
    "merged_hidden_size", "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id",
})  # fmt: skip
# Of the language model.
SHARED = ("quantization_config", "tie_word_embeddings", "architectures", "dtype", "torch_dtype")
# Whether the head is tied where no key says so, and the class of the text_config alone would say otherwise. None: the
# classes of the whole and of its text disagree, and released checkpoints with both.
TIED = {"qwen3_vl_moe": False, "mistral3": None, "kimi_k25": None}


def language_model(keys: dict) -> tuple[dict, tuple[str, ...]]:
    """(the keys of the language model, what is left out, in words); the keys themselves where they are of one model.

    Raises:
        ConfigError: a composite without a text_config, or with a part that is not known.
    """
    left_out = tuple(words for name, words in TOWERS.items() if keys.get(name) is not None)
    kind = keys.get("model_type")
    composite = type(kind) is str and kind in COMPOSITES
    if composite and keys.get("vision_config") is None:
        left_out = ("the vision tower (of this model_type; no vision_config describes it)", *left_out)
    if not composite or keys.get("text_config") is None:
        return {name: value for name, value in keys.items() if name not in TOWERS}, left_out
    text = keys["text_config"]
    if type(text) is not dict:
        raise ConfigError(f"text_config={shown(text)}: must be an object; write {{...}}")
    harmless = HARMLESS_AT | {"is_encoder_decoder": False}
    for name, value in keys.items():
        known = name in TOWERS or name in MEETING or name in HARMLESS or name in SHARED or name == "text_config"
        if not known and value is not None and not (name in harmless and value == harmless[name]):
            raise ConfigError(
                f"{label(name)}={shown(value)}: not understood beside a text_config; remove it, or put it inside"
            )
    inner = {"model_type": COMPOSITES[kind]} | text
    if keys.get("architectures"):  # the whole says what it ends in
        inner.pop("architectures", None)
    tied = keys.get("tie_word_embeddings", TIED.get(kind))
    if kind in TIED and tied is None and inner.get("tie_word_embeddings") is None:
        raise ConfigError(f"tie_word_embeddings: missing, and {kind} has no one default for it; give true or false")
    if tied is not None:
        inner["tie_word_embeddings"] = tied  # the head belongs to the whole
    outer = {name: keys[name] for name in SHARED if keys.get(name) is not None and name not in inner}
    return outer | {name: value for name, value in inner.items() if name not in TOWERS}, left_out
