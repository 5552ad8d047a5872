"""model_type qwen3 and qwen3_vl_text: llama's block with normed queries and keys of 128-wide heads.

Source: Qwen team 2025, arXiv:2505.09388.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.qwen2 import upper_windows
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = frozenset({"use_mrope"})


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6))
    head, windows = k.int("head_dim", default=128), upper_windows(k, 28)
    return rotary_decoder(k, mlp, positions=32768, kv_heads=32, head=head, qk_norm=norm, windows=windows)
