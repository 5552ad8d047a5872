"""model_type ernie4_5: the llama block with one switch for all biases.

Source: Baidu 2025, ERNIE 4.5 technical report.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "ernie4_5": {
        "vocab_size": 103424, "hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16,
        "intermediate_size": 3072,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("use_rmsnorm", True)
    k.must_be("compression_ratio", 1.0)
    biased = k.bool("use_bias", default=False)
    mlp = same(feed_forward(k, act="silu", gated=True, bias=biased))
    parts = {"bias": biased, "head": default_head(k, 128), "kv_heads": 2, "interleaved": True}
    return rotary_decoder(k, mlp, positions=131072, theta=5e5, eps=1e-5, tie=True, **parts)
