"""model_type smollm3: the llama block; each `no_rope_layer_interval`-th layer has no rotary positions.

Those layers alone have the window, where `use_sliding_window` gives one. Source: Hugging Face 2025, SmolLM3.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.errors import ConfigError
from archcalc.families import shared
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, SLIDING, attention, decoder, feed_forward, layer_count, layer_types, model
from archcalc.keys import Keys

IGNORED = frozenset({"max_window_layers"})
RELEASE = {
    "smollm3": {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "intermediate_size": 11008,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.int("pretraining_tp", default=1)  # sums in that many slices; the products are the same
    depth, period = layer_count(k), k.int("no_rope_layer_interval", default=4)
    turned = k.ints("no_rope_layers") or tuple(int((layer + 1) % period > 0) for layer in range(depth))
    if len(turned) != depth:
        raise ConfigError(f"no_rope_layers of {len(turned)} entries with num_hidden_layers={depth}: give one a layer")
    on, window = k.bool("use_sliding_window", default=False), k.int("sliding_window", default=None)
    window = window if on else None
    default = tuple(SLIDING if window and not turn else FULL for turn in turned)
    types = layer_types(k, depth, default, (FULL, SLIDING))
    windows = [window if kind == SLIDING else None for kind in types]
    positions = rotary(k, 2e6)
    kinds = {
        pair: attention(k, kv_heads=4, window=pair[0], rotary=positions if pair[1] else None)
        for pair in zip(windows, turned, strict=True)
    }
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6))
    mlp = shared.same(feed_forward(k, act="silu", gated=True))
    stack = decoder(k, lambda layer: kinds[windows[layer], turned[layer]], mlp, norm)
    return model(k, stack, tie=True, positions=32768)
