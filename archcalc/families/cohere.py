"""model_type cohere (Command R, Aya): attention and feed-forward in parallel behind one LayerNorm without bias.

Source: Cohere For AI 2024, arXiv:2405.15032; Hugging Face's class.
"""

from __future__ import annotations

from archcalc.config import Head, Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = frozenset({"model_max_length"})
RELEASE = {
    "cohere": {
        "vocab_size": 256000, "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64,
        "intermediate_size": 22528,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    qk_norm = k.bool("use_qk_norm", default=False)
    parts = {"qk_norm": cohere_norm(k), "qk_norm_over": "heads"} if qk_norm else {}
    return parallel_decoder(k, theta=5e5, **parts)


def cohere_norm(k: Keys) -> Norm:
    """A LayerNorm with a scale alone."""
    return Norm("layernorm", k.float("layer_norm_eps", default=1e-5), bias=False)


def parallel_decoder(k: Keys, **parts) -> dict:
    """What the Cohere models share; arguments as in `rotary_decoder`."""
    mlp, norm = same(feed_forward(k, act="silu", gated=True)), cohere_norm(k)
    parts |= {"interleaved": True, "fields": {"head": scaled_head(k)}}
    return rotary_decoder(k, mlp, positions=8192, tie=True, norm=norm, parallel="shared", **parts)


def scaled_head(k: Keys) -> Head:
    """Logits are multiplied by `logit_scale`."""
    return Head(scale=k.float("logit_scale", default=0.0625))
