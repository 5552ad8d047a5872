"""model_type llama: pre-RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

Defaults of absent keys are those of the Hugging Face class; sizes have none.
Source: Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.rope import rotary
from archcalc.families.shared import decoder, feed_forward, layer_count, layer_windows, model, same, windowed
from archcalc.keys import Keys

IGNORED = frozenset({"max_sequence_length", "is_llama_config"})  # what the tokenizer allows; a mark of the writer


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    windows = None
    if not k.bool("use_sliding_window", default=True):  # a converted Qwen, whose other keys then say nothing
        k.used |= {"sliding_window", "max_window_layers"}
        windows = (None,) * layer_count(k)
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048, windows=windows)


def rotary_decoder(
    k: Keys,
    mlp,
    *,
    positions: int,
    theta: float = 1e4,
    share: float = 1.0,
    interleaved: bool = False,
    eps: float = 1e-6,
    tie: bool = False,
    window: int | None = None,
    types: tuple[str, ...] | None = None,
    windows: tuple | None = None,
    norm: Norm | None = None,
    placement: str = "pre",
    parallel: str | None = None,
    fields: dict | None = None,
    **parts,
) -> dict:
    """The shape that many families share: rotary attention, a feed-forward, pre-RMSNorm.

    Args:
        mlp: the feed-forward of a layer, by its index.
        positions, theta, share, eps, tie, window, types: defaults of absent keys; share is `partial_rotary_factor`,
            types are `layer_types`.
        interleaved: rotary positions pair neighbours.
        windows: of each layer, where the family has its own keys for them. norm: in place of RMSNorm.
        placement, parallel: as in Block. fields: further fields of ModelConfig.
        parts: further fields of Attention, and what `windowed` and `attention` take.
    """
    norm = norm or Norm("rmsnorm", k.float("rms_norm_eps", default=eps))
    windows = windows or layer_windows(k, layer_count(k), window, types)
    if "rotary" not in parts:
        parts["rotary"] = rotary(k, theta, share, positions=positions, interleaved=interleaved)
    mixer = windowed(k, windows, **parts)
    stack = decoder(k, mixer, mlp, norm, placement, parallel)
    return model(k, stack, tie=tie, positions=positions, **(fields or {}))
