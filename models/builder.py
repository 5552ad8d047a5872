"""A `ModelConfig` becomes a model: without weights, or with random ones."""

from __future__ import annotations

import torch
from torch import nn

from archcalc.config import ModelConfig
from models.decoder_only import DecoderOnly
from models.encoder_decoder import EncoderDecoder
from models.kernels import Eager
from models.supported import check_built


def skeleton(config: ModelConfig, kernels=Eager, dtype=torch.float32) -> DecoderOnly | EncoderDecoder:
    """The model on the meta device: names, shapes and types, no memory. For inference: no gradients.

    Raises: ConfigError for a part that is counted and not built.
    """
    check_built(config)
    kind = EncoderDecoder if config.encoder else DecoderOnly
    with torch.device("meta"):
        return kind(config, kernels).to(dtype).requires_grad_(False).eval()


def build(
    config: ModelConfig, kernels=Eager, device="cpu", dtype=torch.float32, seed: int = 0
) -> DecoderOnly | EncoderDecoder:
    """The model with random weights, the same for the same seed: normal(0, 0.02), norms the identity.

    On the meta device nothing is allocated, so the largest models can be built. Source: Radford et al. 2019.
    """
    model = skeleton(config, kernels, dtype)
    if torch.device(device).type == "meta":
        return model
    model = model.to_empty(device=device)
    model.tie()  # moving gave the head a matrix of its own
    generator = torch.Generator(device=device).manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            for parameter in module.parameters(recurse=False):
                nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            for name, parameter in module.named_parameters(recurse=False):
                nn.init.constant_(parameter, 1.0 if name == "weight" else 0.0)
    return model
