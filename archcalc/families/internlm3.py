"""model_type internlm3: the llama block; `qkv_bias` and `bias` must be one. Source: Shanghai AI Lab 2025, InternLM3."""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys

ALIASES = {"attention_bias": ("qkv_bias",), "mlp_bias": ("bias",)}
RELEASE = {
    "internlm3": {
        "vocab_size": 128512, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 32,
        "intermediate_size": 10240,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    qkv, rest = k.bool("attention_bias", default=False), k.bool("mlp_bias", default=False)
    if qkv != rest:
        raise ConfigError(f"qkv_bias={qkv} with bias={rest}: the family's class has both or none; fix one of them")
    mlp = same(feed_forward(k, act="silu", gated=True))
    head = default_head(k, 128)
    return rotary_decoder(k, mlp, positions=32768, eps=1e-5, kv_heads=2, head=head)
