"""model_type llama: pre-RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

Defaults of absent keys are those of the Hugging Face class; sizes have none.
Source: Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.rope import rotary
from archcalc.families.shared import decoder, feed_forward, layer_count, layer_windows, model, same, windowed
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048)


def rotary_decoder(k: Keys, mlp, *, positions: int, theta=1e4, eps=1e-6, tie=False, window=None, types=None, **parts):
    """The shape that many families share: rotary attention, a feed-forward, pre-RMSNorm.

    Args:
        mlp: the feed-forward of a layer, by its index.
        positions, theta, eps, tie, window, types: defaults of absent keys; types are `layer_types`.
        parts: further fields of Attention, and `kv_heads` and `bias`.
    """
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=eps))
    windows = layer_windows(k, layer_count(k), window, types)
    mixer = windowed(k, windows, rotary=rotary(k, theta), **parts)
    return model(k, decoder(k, mixer, mlp, norm), tie=tie, positions=positions)
