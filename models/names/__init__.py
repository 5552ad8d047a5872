"""The tables by model type: what the tensors of a checkpoint are called, and what must hold of its config."""

from __future__ import annotations

from models.names.encoders import (
    BART,
    BERT,
    DISTILBERT,
    MARIAN,
    ROBERTA,
    T5,
    WHISPER,
)
from models.names.llama_like import (
    COHERE,
    DEEPSEEK_V3,
    FLEX_OLMO,
    GEMMA2,
    GLM,
    GLM4,
    GPT_OSS,
    LLAMA,
    LLAMA_MOE,
    MINIMAX_M2,
    MIXTRAL,
    NEMOTRON,
    OLMO2,
    PERSIMMON,
    PHI,
    PHI3,
    QWEN3_NEXT,
    STABLELM,
    STARCODER2,
    VAULTGEMMA,
)
from models.names.other_decoders import (
    BIOGPT,
    BLOOM,
    FALCON,
    GPT2,
    GPT_BIGCODE,
    GPT_NEO,
    GPT_NEOX,
    GPTJ,
    MAMBA2,
    NEMOTRON_H,
    OPT,
)
from models.names.rules import Table

__all__ = ["COMPUTED", "HUGGING_FACE"]

# model_type of a config.json: its table.
HUGGING_FACE: dict[str, Table] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "olmo", "seed_oss", "smollm3", "arcee", "cwm",
            "eurobert",
        ),
        LLAMA,
    ),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "dots1", "glm4_moe"), LLAMA_MOE),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), DEEPSEEK_V3),
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5", "helium"), COHERE),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    **dict.fromkeys(("bart", "mbart", "pegasus", "plbart", "blenderbot"), BART),
    "gemma2": GEMMA2, "gemma3_text": GEMMA2, "vaultgemma": VAULTGEMMA, "olmo2": OLMO2, "olmo3": OLMO2,
    "exaone4": OLMO2, "flex_olmo": FLEX_OLMO, "phi3": PHI3, "glm": GLM, "glm4": GLM4, "stablelm": STABLELM,
    "jais2": STABLELM, "starcoder2": STARCODER2, "nemotron": NEMOTRON, "persimmon": PERSIMMON, "phi": PHI,
    "mixtral": MIXTRAL, "minimax_m2": MINIMAX_M2, "gpt_oss": GPT_OSS, "qwen3_next": QWEN3_NEXT, "gpt2": GPT2,
    "gpt_bigcode": GPT_BIGCODE, "gptj": GPTJ, "gpt_neo": GPT_NEO, "gpt_neox": GPT_NEOX, "falcon": FALCON,
    "bloom": BLOOM, "opt": OPT, "biogpt": BIOGPT, "mamba2": MAMBA2, "nemotron_h": NEMOTRON_H, "bert": BERT,
    "distilbert": DISTILBERT, "marian": MARIAN, "whisper": WHISPER,
}  # fmt: skip

# Keys that change what is computed and that no part of a ModelConfig has: the value that is computed here.
COMPUTED: dict[str, dict[str, object]] = {
    "gpt_oss": {"swiglu_alpha": 1.702},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "deepseek_v2": {"scoring_func": "softmax", "topk_method": "greedy"},
    "olmo": {"clip_qkv": None},
    "olmoe": {"clip_qkv": None},
    "minimax_m2": {"scoring_func": "sigmoid"},
    "roberta": {"hidden_act": "gelu"},  # that of its head is fixed
    "xlm-roberta": {"hidden_act": "gelu"},
    "camembert": {"hidden_act": "gelu"},
    "mamba2": {"hidden_act": "silu"},
    "whisper": {"scale_embedding": False},  # the class reads it and does nothing with it
    "nemotron_h": {"mamba_hidden_act": "silu"},
}
