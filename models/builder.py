"""A `ModelConfig` becomes a model: without weights, or with random ones."""

from __future__ import annotations

import torch

from archcalc.config import ModelConfig
from models.feed_forward import MixtureOfExperts
from models.kernels import Eager
from models.language_model import DecoderOnly, EncoderDecoder, EncoderOnly
from models.random_weights import random_rows
from models.supported import check_built, check_computed

Model = DecoderOnly | EncoderDecoder | EncoderOnly


def skeleton(config: ModelConfig, kernels=Eager, dtype=torch.float32) -> Model:
    """The model on the meta device: names, shapes and types, no memory. For inference: no gradients.

    Raises: ConfigError for a part that is counted and not built.
    """
    check_built(config)
    kind = DecoderOnly if not config.encoder else EncoderDecoder if config.decoder else EncoderOnly
    with torch.device("meta"):
        model = kind(config, kernels).to(dtype).requires_grad_(False).eval()
    for module in model.modules():  # stored in fp32 and compared in fp32, whatever the weights are
        if isinstance(module, MixtureOfExperts) and module.correction_bias is not None:
            module.correction_bias = module.correction_bias.float()
    return model


def build(config: ModelConfig, kernels=Eager, device="cpu", dtype=torch.float32, seed: int = 0) -> Model:
    """The model with random weights, the same for the same seed: normal(0, 0.02), norms the identity, biases 0.

    On the meta device nothing is allocated, so the largest models can be built. Source: Radford et al. 2019.
    Raises: ConfigError for a part that is not built, or a model type whose values were never compared.
    """
    model = skeleton(config, kernels, dtype)
    if torch.device(device).type == "meta":
        return model
    check_computed(config)
    model = model.to_empty(device=device)
    model.tie()  # moving gave the head a matrix of its own
    owned = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, start, rows in random_rows(model, device, seed):
        owned[name][start : start + len(rows)] = rows
    return model
