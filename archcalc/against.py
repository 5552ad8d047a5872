"""The same config built by transformers on the meta device (no memory): its parameters beside ours. Needs transformers.

Both columns are by part: `embedding` (tables of tokens, positions and types), `mixer` (attention or what stands for
it), `feed-forward`, `norms`, `head` (all after the last norm), `other` (residual streams, inputs of each layer), and
the `buffers` that are stored. A tied matrix counts once, in the embedding.

No code from a checkpoint is run: only classes that transformers itself has, and a random model of no storage.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from copy import deepcopy
from typing import Any

from archcalc.config import ModelConfig
from archcalc.cost import buffers
from archcalc.counts import lines
from archcalc.errors import ConfigError

# Parts of a model that is more than its language model, by the name of the module that holds them.
TOWERS = re.compile(
    r"(^|\.)(vision_\w+|visual|vision|vit\w*|image_\w+|video_tower|audio_\w+|multi_modal_projector|multimodal_projector"
    r"|embed_vision|embed_audio|mm_projector|connector|aligner|patch_merge_mlp|merger)(\.|$)"
)


AUTO = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText", "AutoModel")


def built(keys: dict[str, Any], architecture: str | None = None, autos: tuple[str, ...] = AUTO):
    """The transformers model of a config.json, on the meta device.

    Args:
        architecture: its class; default the first of `architectures` that transformers has, else the causal or
            sequence-to-sequence language model of its model_type (the first of `autos` that has one).
    Raises:
        ConfigError: transformers does not know the model_type.
    """
    import torch
    import transformers

    left_out = ("quantization_config", "auto_map")
    keys = {k: deepcopy(v) for k, v in keys.items() if k not in left_out}  # transformers writes into nested objects
    kind = str(keys.pop("model_type", None))
    parts = transformers.CONFIG_MAPPING[kind].sub_configs if kind in transformers.CONFIG_MAPPING else {}
    if "text_config" in parts and "text_config" not in keys:  # flat keys of a class that would take none of them
        keys = {"text_config": keys} | {n: keys[n] for n in ("architectures", "tie_word_embeddings") if n in keys}
    try:
        config = transformers.AutoConfig.for_model(kind, **keys)
    except ValueError as error:
        raise ConfigError(f"model_type={kind!r}: transformers {transformers.__version__} does not know it") from error
    names = [architecture] if architecture else [n for n in keys.get("architectures") or [] if isinstance(n, str)]
    cls = next((getattr(transformers, n) for n in names if hasattr(transformers, n)), None)
    with torch.device("meta"):
        if cls is not None:
            return cls._from_config(config)
        for auto in autos:
            try:
                return getattr(transformers, auto).from_config(config)
            except ValueError:
                continue
    raise ConfigError(f"model_type={kind!r}: transformers has no model class for it")


def counted(model) -> dict[str, int]:
    """Parameters by part, a tied one once: `language_model`, each tower by its name, and `buffers` that are stored."""
    found: dict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        tower = TOWERS.search(name)
        found[tower.group(2) if tower else "language_model"] += parameter.numel()
    stored = set(model.state_dict())
    found["buffers"] = sum(b.numel() for name, b in model.named_buffers() if name in stored and not TOWERS.search(name))
    return dict(found)


PARTS = ("embedding", "mixer", "feed-forward", "norms", "head", "other")

# Our parts, by the name of the op; the first that fits.
OURS = (
    ("norms", re.compile(r"norm$")),
    ("head", re.compile(r"^(lm_head|head_projection|head\.|pooler)")),
    ("embedding", re.compile(r"(^|\.)(embed_\w+|conv[12])$")),
    ("mixer", re.compile(r"(^|\.)(self_attn|cross_attn|mixer)\.")),
    ("feed-forward", re.compile(r"(^|\.)mlp\.")),
)

# Theirs, by the path of the parameter without `weight` and `bias`.
LAYER = re.compile(r"(^|\.)(layers?|h|blocks?|block|transformer_blocks)\.\d+\.")
NORM = re.compile(r"(norm\d*|ln_?\w*|layernorm\w*|layer_?norm\w*|\w+_norm\d?|norm_\w+)$", re.IGNORECASE)
MIXER = re.compile(
    r"attn|attention|(^|\.)(mixer|mamba|ssm|conv|temporal_block|indexer|linear_attn|kda|delta\w*)(\.|$)", re.IGNORECASE
)
OUTER_HEAD = re.compile(
    r"(^|\.)(lm_head$|pooler(\.|$))|^(embed_out|cls|score|generator_lm_head|model\.decoder\.project_out)"
)


# Modules that a class calls a mixer though they are feed-forward layers (Nemotron-H).
FEED_FORWARD = re.compile(r"^mixer\.(up_proj|down_proj|gate|experts|shared_experts?|fc\d_latent_proj)(\.|$)")
BESIDE = re.compile(r"(^|\.)(\w+_hc|hc_\w+|hyper\w*|per_layer\w*)(\.|$)")  # residual streams, inputs of each layer

# Buffers that some classes store though they follow from the config.
COMPUTED = re.compile(r"(^|\.)(slope_rate|\w+_decay)$")


def part_of(name: str) -> str:
    """The part that a parameter of a transformers model belongs to, by its path."""
    path = re.sub(r"\.(weight|bias)$", "", name)
    if OUTER_HEAD.search(path) and not LAYER.search(path):
        return "norms" if NORM.search(path) else "head"
    if NORM.search(path):
        return "norms"
    if BESIDE.search(path):
        return "other"
    if not (found := LAYER.search(path)):
        return "embedding"
    inside = path[found.end() :]
    return "mixer" if MIXER.search(inside) and not FEED_FORWARD.search(inside) else "feed-forward"


def ours(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, and the stored buffers."""
    found = dict.fromkeys(PARTS, 0)
    for line in lines(config):
        part = next((part for part, pattern in OURS if pattern.search(line.name)), "other")
        found[part] += line.count * line.params
    return found | {"total": sum(found.values()), "buffers": buffers(config)}


def theirs(model) -> tuple[dict[str, int], dict[str, int]]:
    """(parameters of the language model by part and its stored buffers, parameters of each tower)."""
    found, towers = dict.fromkeys(PARTS, 0), defaultdict(int)
    for name, parameter in model.named_parameters():
        if tower := TOWERS.search(name):
            towers[tower.group(2)] += parameter.numel()
        else:
            found[part_of(name)] += parameter.numel()
    if computed := sum(buffer.numel() for name, buffer in model.named_buffers() if COMPUTED.search(name)):
        towers["tables of decays, computed here"] = computed
    stored = counted(model)["buffers"] - computed
    return found | {"total": sum(found.values()), "buffers": stored}, dict(towers)


def _autos(config: ModelConfig) -> tuple[str, ...]:
    """The classes for a config that names none: those that end as ours does."""
    if config.encoder and config.decoder:
        return "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"
    if config.decoder:
        return AUTO
    return {"mlm": "AutoModelForMaskedLM", "labels": "AutoModelForSequenceClassification"}.get(
        config.head.kind, "AutoModel"
    ), "AutoModel"


def compare(config: ModelConfig, keys: dict[str, Any] | None = None) -> dict[str, Any]:
    """Both columns.

    Args:
        keys: the whole config.json where it describes more than the language model; default the keys of `config`.
    Returns:
        plain data: `rows` of (part, ours, theirs), the `towers` that only they have, `agree`, and their `version`.
    Raises:
        ConfigError: transformers is not installed or does not know the model_type.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"against='transformers': {error.name} is not installed; pip install torch transformers"
        ) from None
    mine, (other, towers) = ours(config), theirs(built(keys or config.keys or {}, autos=_autos(config)))
    tables = _sinusoids(config)
    if tables and other["total"] - mine["total"] == tables:
        other["embedding"] -= tables
        other["total"] -= tables
        towers["sinusoids, computed here"] = tables
    rows = [{"part": part, "ours": mine[part], "theirs": other[part]} for part in mine if mine[part] or other[part]]
    agree = all(row["ours"] == row["theirs"] for row in rows)
    return {"rows": rows, "towers": towers, "agree": agree, "version": transformers.__version__, "model": config.name}


def whole_keys(path: str, config: ModelConfig) -> dict[str, Any]:
    """The keys of a config.json with those that `config` was read from, so that its towers are built too."""
    from archcalc.hf import read_json

    whole = read_json(os.path.join(path, "config.json") if os.path.isdir(path) else path)
    if type(whole.get("text_config")) is not dict:
        return config.keys or {}
    return whole | {"text_config": whole["text_config"] | (config.keys or {})}


def _sinusoids(config: ModelConfig) -> int:
    """Elements of the position tables that some classes store though they are computed: one a stack."""
    if config.position_embedding != "sinusoidal":
        return 0
    return len(config.stacks) * config.max_position_embeddings * config.hidden_size
