"""The same config built by transformers on the meta device (no memory): its parameters beside ours. Needs transformers.

No code from a checkpoint is run: only classes that transformers itself has, and a random model of no storage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from archcalc.errors import ConfigError

# Parts of a model that is more than its language model, by the name of the module that holds them.
TOWERS = re.compile(
    r"(^|\.)(vision_\w+|visual|vision|vit\w*|image_\w+|audio_\w+|multi_modal_projector|multimodal_projector|embed_vision"
    r"|embed_audio|mm_projector|connector|patch_merge_mlp|merger)(\.|$)"
)


def built(keys: dict[str, Any], architecture: str | None = None):
    """The transformers model of a config.json, on the meta device.

    Args:
        architecture: its class; default the first of `architectures` that transformers has, else the causal or
            sequence-to-sequence language model of its model_type.
    Raises:
        ConfigError: transformers does not know the model_type.
    """
    import torch
    import transformers

    keys = {k: v for k, v in keys.items() if k not in ("quantization_config", "auto_map", "model_type")} | {
        "model_type": keys.get("model_type")
    }
    kind = str(keys.pop("model_type"))
    try:
        config = transformers.AutoConfig.for_model(kind, **keys)
    except ValueError as error:
        raise ConfigError(f"model_type={kind!r}: transformers {transformers.__version__} does not know it") from error
    names = [architecture] if architecture else [n for n in keys.get("architectures") or [] if isinstance(n, str)]
    cls = next((getattr(transformers, n) for n in names if hasattr(transformers, n)), None)
    with torch.device("meta"):
        if cls is not None:
            return cls._from_config(config)
        for auto in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText", "AutoModel"):
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
