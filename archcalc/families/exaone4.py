"""model_type exaone4: x + norm(f(x)), normed queries and keys; the layers with a window are those with positions.

Without a `sliding_window` all layers see everything and have positions.
Source: LG AI Research 2025, arXiv:2507.11407.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import FULL, SLIDING, every, feed_forward, layer_count, layer_windows, predictors, same
from archcalc.keys import Keys

IGNORED = frozenset({"_num_mtp_layers", "mtp_loss_scaling_factor", "mtp_share_layers"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, depth = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5)), layer_count(k)
    if k.raw.get("layer_types"):
        k.used.add("sliding_window_pattern")  # how they were made, "LLLG"
    period = depth + 1 if k.raw.get("layer_types") else k.int("sliding_window_pattern", default=4)
    some = not k.given("sliding_window") or k.raw["sliding_window"] is not None
    windows = layer_windows(k, depth, 4096, every(period, FULL, SLIDING if some else FULL, depth))
    mlp, full = same(feed_forward(k, act="silu", gated=True)), {"rotary": None} if some else {}
    parts = {"norm": norm, "qk_norm": norm, "windows": windows, "full": full, "kv_heads": 32}
    for name in ("q_bias", "k_bias", "v_bias", "o_bias"):
        parts[name] = False
    fields = {"left_out": predictors(k)}
    return rotary_decoder(k, mlp, positions=2048, placement="inner", fields=fields, **parts)
