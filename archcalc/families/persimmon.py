"""model_type persimmon: LayerNorm, also of queries and keys, squared ReLU, biases, half of each head turned.

Source: Adept 2023, Persimmon-8B.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "persimmon": {
        "vocab_size": 262144, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 64,
        "intermediate_size": 16384,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="relu2", gated=False, bias=True))
    qk_norm = norm if k.bool("qk_layernorm", default=True) else None
    return rotary_decoder(k, mlp, positions=16384, share=0.5, norm=norm, qk_norm=qk_norm, bias=True)
