"""model_type qwen2, mimo and flat qwen2_vl: llama's block with biases of queries, keys and values.

The first `max_window_layers` layers see everything, the others a window, where `use_sliding_window` says so.
Layers that predict several tokens (MiMo's `num_nextn_predict_layers`) are named and left out.
Source: Qwen team 2024, arXiv:2407.10671; Xiaomi 2025, arXiv:2505.07608.
"""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import FULL, SLIDING, feed_forward, layer_count, layer_types, predictors, same
from archcalc.keys import Keys

IGNORED = frozenset({"use_mrope"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return biased_decoder(k, kv_heads=32, positions=32768, full_layers=28)


def biased_decoder(k: Keys, *, kv_heads: int, full_layers: int, **defaults) -> dict:
    """Qwen2's decoder; arguments are defaults of absent keys."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    windows = upper_windows(k, full_layers)
    found = rotary_decoder(
        k, mlp, windows=windows, q_bias=True, k_bias=True, v_bias=True, o_bias=False, kv_heads=kv_heads, **defaults
    )
    return found | {"left_out": predictors(k)}


def upper_windows(k: Keys, full_layers: int) -> tuple:
    """The window of each layer: none in the first `max_window_layers` (absent: `full_layers`) or without a switch."""
    depth, on = layer_count(k), k.bool("use_sliding_window", default=False)
    window = k.int("sliding_window", default=None if k.given("sliding_window") else 4096) if on else None
    k.used.add("sliding_window")  # without the switch it says nothing
    first = k.count("max_window_layers", default=full_layers)
    default = tuple(SLIDING if window and layer >= first else FULL for layer in range(depth))
    types = layer_types(k, depth, default, (FULL, SLIDING))
    if SLIDING in types and not window:
        raise ConfigError(
            f"layer_types={SLIDING!r} with use_sliding_window={on}: such a layer needs a window; "
            "set use_sliding_window and sliding_window"
        )
    return tuple(window if kind == SLIDING else None for kind in types)
