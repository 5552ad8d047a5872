"""model_type gptj and codegen: attention and feed-forward in parallel behind one LayerNorm; the head has a bias.

Source: Wang & Komatsuzaki 2021, mesh-transformer-jax; Nijkamp et al. 2022, arXiv:2203.13474.
"""

from __future__ import annotations

from archcalc.config import Head, Norm, Rotary
from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, head_dim, same
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions",),
    "intermediate_size": ("n_inner",),
    "hidden_act": ("activation_function",),
}
IGNORED = frozenset({"n_ctx", "rotary", "scale_attn_weights"})
RELEASE = {
    "gptj": {"vocab_size": 50400, "hidden_size": 4096, "num_hidden_layers": 28, "num_attention_heads": 16},
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5))
    mlp = feed_forward(k, act="gelu_new", gated=False, bias=True, size=4 * k.int("hidden_size"))
    width = head_dim(k, k.int("num_attention_heads"))
    turned = k.int("rotary_dim", default=width if k.given("rotary_dim") else min(64, width))
    if turned > width:
        raise ConfigError(f"rotary_dim={turned}: more than head_dim={width}; give at most that many")
    parts = {
        "rotary": Rotary(partial_rotary_factor=turned / width, interleaved=True),
        "norm": norm,
        "fields": {"head": Head(bias=True)},
    }
    return rotary_decoder(k, same(mlp), positions=2048, parallel="shared", **parts)
