"""The PyTorch model that a build comes from and is verified against, and where its weights came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from archcalc.config import ModelConfig
from archcalc.cost import parameters
from archcalc.errors import ConfigError
from archcalc.presets import preset
from archcalc.units import scaled
from export.files import ExportError, file_sums
from models import build, load, safetensors_file
from models.gguf_file import smollm2_gguf

SEED = 0


def weights_file(config: ModelConfig, choice: str) -> Path | None:
    """The file of weights that a choice means, None for random ones.

    Args:
        choice: `auto` (the installed SmolLM2 file if this is that model, else random), `random`, or a path.
    """
    if choice == "random":
        return None
    if choice == "auto":
        return smollm2_gguf() if config == preset("smollm2-135m") else None
    if not Path(choice).exists():
        raise ConfigError(f"weights={choice}: no such file; give a .gguf or .safetensors file, or `random`")
    return Path(choice)


def reference(config: ModelConfig, choice: str = "auto") -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model in fp32 and the origin of its weights, for the manifest."""
    path = weights_file(config, choice)
    _check_memory(config)
    if path is None:
        return build(config, seed=SEED), origin(None)
    return load(path, config), origin(path)


def origin(path: Path | None) -> dict[str, Any]:
    """Where weights come from, for a manifest: None for random ones. Of several files, `sha256` has each one's."""
    if path is None:
        return {"kind": "random", "seed": SEED}
    files = [path] if path.suffix == ".gguf" else safetensors_file.files(path)
    sums = file_sums(files)
    return {"kind": "file", "name": path.name, "sha256": sums if len(files) > 1 else sums[files[0].name]}


def _check_memory(config: ModelConfig) -> None:
    """Raise ExportError for a model whose fp32 weights the machine cannot hold."""
    needed, there = 4 * parameters(config), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ExportError(
            f"{config.name}: its weights take {scaled(needed, 'B')} in fp32, this machine has {scaled(there, 'B')}; "
            "choose a smaller model, or --set fewer layers"
        )


def reference_of(manifest: dict[str, Any], config: ModelConfig, choice: str = "auto") -> torch.nn.Module:
    """The model that a manifest's build was made from.

    Raises: ExportError if its weights are not at hand, or are other ones.
    """
    origin = manifest["weights"]
    if origin.get("kind") == "random":
        return reference(config, "random")[0]
    path = weights_file(config, choice)
    if path is None:
        raise ExportError(f"weights={choice}: the build was made from {origin.get('name')}; give its path by --weights")
    model, found = reference(config, str(path))
    if found["sha256"] != origin.get("sha256"):
        raise ExportError(f"weights={path}: not the file that the build was made from; give that, or build again")
    return model


def described(origin: dict[str, Any]) -> str:
    """The origin of weights in a few words."""
    if origin["kind"] == "random":
        return f"random weights (seed {origin['seed']})"
    return f"weights of {origin['name']}"
