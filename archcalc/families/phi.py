"""model_type phi: parallel attention and feed-forward behind one LayerNorm, biases everywhere, the head's included.

Source: Li et al. 2023, arXiv:2309.05463; Hugging Face's class.
"""

from __future__ import annotations

from archcalc.config import Head, Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "phi": {
        "vocab_size": 51200, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "intermediate_size": 8192,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="gelu_new", gated=False, bias=True))
    parts = {"norm": norm, "qk_norm": norm if k.bool("qk_layernorm", default=False) else None}
    fields = {"head": Head(bias=True)}
    return rotary_decoder(k, mlp, positions=2048, share=0.5, parallel="shared", bias=True, fields=fields, **parts)
