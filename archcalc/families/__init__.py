"""One module a family of config.json: how its keys become a model. The key `model_type` alone chooses it.

A module has `build(Keys) -> dict` of ModelConfig fields and, where it needs them, `ALIASES` (canonical name -> the
family's names for the same thing), `PER_STACK` (canonical name -> the encoder's and the decoder's name), `IGNORED`
(its own harmless keys) and `RELEASE` (sizes of absent keys, where the Hugging Face class defaults to a released
model). Canonical names are those of model_type llama.
"""

from importlib import import_module
from types import ModuleType

from archcalc.errors import ConfigError, nearest
from archcalc.keys import Keys, shown

# model_type -> the module that reads it.
MODULES = {
    "afmoe": "afmoe",
    "albert": "albert",
    "apertus": "apertus",
    "arcee": "arcee",
    "bamba": "bamba",
    "bart": "bart",
    "bert": "bert",
    "biogpt": "biogpt",
    "bitnet": "bitnet",
    "blenderbot": "bart",
    "blenderbot-small": "bart",
    "bloom": "bloom",
    "camembert": "bert",
    "codegen": "gptj",
    "cohere": "cohere",
    "cohere2": "cohere2",
    "cohere2_moe": "cohere2_moe",
    "dbrx": "dbrx",
    "deberta-v2": "deberta_v2",
    "deepseek_ref": "deepseek_v4",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "distilbert": "distilbert",
    "dots1": "dots1",
    "electra": "electra",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5_moe",
    "esm": "esm",
    "eurobert": "eurobert",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "exaone_moe": "exaone_moe",
    "falcon": "falcon",
    "falcon_h1": "falcon_h1",
    "falcon_mamba": "mamba",
    "flex_olmo": "flex_olmo",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "glm": "glm",
    "glm4": "glm4",
    "glm4_moe": "glm4_moe",
    "glm4_moe_lite": "glm4_moe_lite",
    "glm_moe_dsa": "glm_moe_dsa",
    "gpt2": "gpt2",
    "gpt_bigcode": "gpt_bigcode",
    "gpt_neo": "gpt_neo",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "gptj": "gptj",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitemoehybrid",
    "granitemoeshared": "granitemoe",
    "helium": "helium",
    "hunyuan_v1_dense": "hunyuan_v1_dense",
    "hunyuan_v1_moe": "hunyuan_v1_moe",
    "internlm3": "internlm3",
    "jamba": "jamba",
    "kimi_k2": "deepseek_v3",
    "kimi_linear": "kimi_linear",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "llama": "llama",
    "llama4_text": "llama4",
    "m2m_100": "m2m_100",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "marian": "marian",
    "mbart": "bart",
    "mimo": "qwen2",
    "mimo_v2_flash": "mimo_v2_flash",
    "minicpm3": "minicpm3",
    "minimax": "minimax",
    "minimax_m2": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "minimax_m3_vl_text": "minimax_m3",
    "ministral": "ministral",
    "ministral3": "ministral3",
    "mistral": "mistral",
    "mistral4": "mistral4",
    "mixtral": "mixtral",
    "modernbert": "modernbert",
    "mpnet": "mpnet",
    "mpt": "mpt",
    "mt5": "t5",
    "nanochat": "nanochat",
    "nemotron": "nemotron",
    "nemotron-nas": "nemotron_nas",
    "nemotron_h": "nemotron_h",
    "nllb-moe": "m2m_100",
    "nomic_bert": "nomic_bert",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo3",
    "olmo_hybrid": "olmo_hybrid",
    "olmoe": "olmoe",
    "opt": "opt",
    "pegasus": "bart",
    "persimmon": "persimmon",
    "phi": "phi",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "plbart": "bart",
    "qwen2": "qwen2",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_5_vl_text": "qwen2_vl",
    "qwen2_moe": "qwen2_moe",
    "qwen2_vl": "qwen2_vl",
    "qwen2_vl_text": "qwen2_vl",
    "qwen3": "qwen3",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "recurrent_gemma": "recurrent_gemma",
    "roberta": "bert",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "step3p5": "step3p7",
    "step3p7": "step3p7",
    "switch_transformers": "t5",
    "t5": "t5",
    "transformer": "transformer",
    "umt5": "t5",
    "vaultgemma": "vaultgemma",
    "whisper": "whisper",
    "xglm": "xglm",
    "xlm-roberta": "bert",
    "youtu": "youtu",
}


def family(model_type: object) -> ModuleType:
    """The module that reads this model_type; only that one is imported. Raises ConfigError if there is none."""
    if model_type is None:
        raise ConfigError("model_type: missing, and never guessed; give one that `archcalc families` lists")
    if type(model_type) is not str or model_type not in MODULES:
        hint = nearest(model_type[:60], MODULES) if type(model_type) is str else ""
        raise ConfigError(
            f"model_type={shown(model_type)}: not understood{hint}; `archcalc families` lists those that are"
        )
    return import_module("archcalc.families." + MODULES[model_type])


def reader(raw: dict, module: ModuleType, model_type: str, prefix: str = "") -> Keys:
    """A strict reader of a config under the names that its family has for things."""
    aliases, ignored = getattr(module, "ALIASES", {}), getattr(module, "IGNORED", frozenset())
    release = getattr(module, "RELEASE", {}).get(model_type)
    return Keys(raw, aliases, ignored, release=release, owner=f"model_type {model_type}", prefix=prefix)
