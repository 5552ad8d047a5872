"""A config of several models (a language model with towers for images or sound): its language model is counted.

Every part that is set aside is named in `ModelConfig.left_out`; a part nobody knows is refused.
"""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.keys import HARMLESS, HARMLESS_AT, label, shown

# Outer model_type -> the model_type of its text_config where that has none of its own.
COMPOSITES = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "exaone4_5": "exaone4",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm4v_moe": "glm4v_moe_text",
    "got_ocr2": "qwen2",
    "idefics3": "llama",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "step3p7": "step3p5",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
# model_type of a text_config -> another name that one composite has for it.
RENAMED = {"exaone4_5_text": "exaone4"}
# A text_config says only in what it differs from its class, whose sizes are those of a released model.
LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008,
}  # fmt: skip
SIZES = {
    "llama": LLAMA,
    "mistral": LLAMA | {"intermediate_size": 14336},
    "qwen2": LLAMA | {"vocab_size": 151936, "intermediate_size": 22016},
}
OWN_SIZES = ("got_ocr2", "voxtral")  # composites that have sizes of their own for what is absent
TOWERS = {
    "vision_config": "the vision tower (vision_config)",
    "audio_config": "the audio tower (audio_config)",
    "adapters": "adapters (adapters): the model that they sit on is counted",
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
    "use_image_newline_parameter", "vision_aspect_ratio", "projection_dim", "audio_token_index", "scale_factor",
    "downsample_factor", "do_image_splitting", "encoder_patch_size", "max_image_tokens", "min_image_tokens",
    "max_pixels_tolerance", "max_tiles", "min_tiles", "projector_use_layernorm", "tile_size", "use_thumbnail",
    "use_image_special_tokens", "alignment_intermediate_size", "adapter_layer_norm_eps", "projector_layernorm_eps",
    "vision_feature_layers", "video_seq_length", "_pad_token_id",
    "spatial_pool_mode", "spatial_pool_stride", "spatial_pool_out_channels", "image_newline", "downsample_ratio",
})  # fmt: skip
# Such keys inside of a text_config, and some that are so at one value.
INSIDE = frozenset({"num_image_tokens", "pixel_shuffle_factor", "is_llama_config", "perceiver_config"})
INSIDE_AT = {"qk_layer_norms": False, "use_resampler": False, "use_mrope": False}
# Outer keys that repeat sizes of the text_config, not always rightly, and that no class reads.
UNREAD = dict.fromkeys(("llava", "llava_next", "llava_next_video", "vipllava", "video_llava"), ("vocab_size",))
# Of the language model.
SHARED = ("quantization_config", "quantization", "tie_word_embeddings", "architectures", "dtype", "torch_dtype")
# Whether the head is tied where no key says so, and the class of the text_config alone would say otherwise. None: the
# classes of the whole and of its text disagree, and released checkpoints with both.
TIED = {
    "qwen3_vl_moe": False, "mistral3": None, "kimi_k25": None, "internvl": None, "got_ocr2": True, "deepseek_vl": True,
    **dict.fromkeys(("idefics3", "smolvlm", "llava_next", "llava_next_video", "video_llava", "vipllava"), False),
}  # fmt: skip
EITHER = ("llava", "llava_onevision")  # the head is tied where the whole or its text_config says so
OWN_HEAD = AUDIO = ("qwen2_audio", "voxtral")  # never tied; they have no tower for images


def language_model(keys: dict) -> tuple[dict, tuple[str, ...]]:
    """(the keys of the language model, what is left out, in words); the keys themselves where they are of one model.

    Raises:
        ConfigError: a composite without a text_config, or with a part that is not known.
    """
    left_out = tuple(words for name, words in TOWERS.items() if keys.get(name) is not None)
    kind = keys.get("model_type")
    composite = type(kind) is str and kind in COMPOSITES
    if composite and keys.get("vision_config") is None and kind not in AUDIO:
        left_out = ("the vision tower (of this model_type; no vision_config describes it)", *left_out)
    if not composite or keys.get("text_config") is None:
        return {name: value for name, value in keys.items() if name not in TOWERS}, left_out
    text = keys["text_config"]
    if type(text) is not dict:
        raise ConfigError(f"text_config={shown(text)}: must be an object; write {{...}}")
    _check_outer(kind, keys, text)
    inner = {"model_type": COMPOSITES[kind]} | text
    if keys.get("architectures"):  # the whole says what it ends in
        inner.pop("architectures", None)
    if type(inner["model_type"]) is str:
        inner["model_type"] = RENAMED.get(inner["model_type"], inner["model_type"])
    tied = _tied(kind, keys, text)
    if tied is not None:
        inner["tie_word_embeddings"] = tied
    outer = {name: keys[name] for name in SHARED if keys.get(name) is not None and name not in inner}
    left = {name for name, value in INSIDE_AT.items() if inner.get(name, value) is value} | TOWERS.keys() | INSIDE
    left |= {name for name in MEETING if name.endswith(("_token_id", "_token_index"))}
    return outer | {name: value for name, value in inner.items() if name not in left}, left_out


def _check_outer(kind: str, keys: dict, text: dict) -> None:
    """Refuse what is neither of the parts that are left out, nor of their meeting, nor said by the text_config too."""
    harmless = HARMLESS_AT | {"is_encoder_decoder": False}
    known = TOWERS.keys() | MEETING | HARMLESS | set(SHARED) | {"text_config"} | set(UNREAD.get(kind, ()))
    for name, value in keys.items():
        fits = name in harmless and value == harmless[name]
        if not (name in known or value is None or fits or _copied(name, value, text)):
            raise ConfigError(
                f"{label(name)}={shown(value)}: not understood beside a text_config; remove it, or put it inside"
            )


def _tied(kind: str, keys: dict, text: dict) -> object:
    """`tie_word_embeddings` of the whole, to which the head belongs; None where the text_config alone decides."""
    outer, inner = keys.get("tie_word_embeddings"), text.get("tie_word_embeddings")
    if kind in OWN_HEAD:
        if True in (outer, inner):
            raise ConfigError(f"tie_word_embeddings=True: {kind} always has a head of its own; set it to false")
        return False
    if kind == "llama4" or (kind in EITHER and inner is True):
        return inner
    tied = TIED.get(kind) if outer is None else outer
    if kind in TIED and tied is None and inner is None:
        raise ConfigError(f"tie_word_embeddings: missing, and {kind} has no one default for it; give true or false")
    return tied


def _copied(name: str, value: object, text: dict) -> bool:
    """Whether an outer key repeats the text_config, as old files do; where that has null, the null counts."""
    if name not in text or name == "model_type":
        return False
    return text[name] is None or (type(text[name]) is type(value) and text[name] == value)


def text_sizes(keys: dict, model_type: object) -> dict[str, int]:
    """Sizes that an absent key of a text_config takes, by the model_type that it is read as."""
    kind = keys.get("model_type")
    composite = type(kind) is str and kind in COMPOSITES and kind not in OWN_SIZES
    return SIZES.get(str(model_type), {}) if composite and type(keys.get("text_config")) is dict else {}
