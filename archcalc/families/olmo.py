"""model_type olmo: the llama block with a LayerNorm that owns nothing.

Source: Groeneveld et al. 2024, arXiv:2402.00838.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = frozenset({"clip_qkv"})
RELEASE = {
    "olmo": {
        "vocab_size": 50304, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 11008,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", 1e-5, weight=False)
    return rotary_decoder(k, same(feed_forward(k, act="silu", gated=True)), positions=2048, norm=norm)
