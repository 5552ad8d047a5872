"""model_type minicpm3: deepseek_v2's attention with a dense feed-forward in every layer.

Factors of embeddings, residual stream and logits own nothing. Source: Hu et al. 2024, arXiv:2404.06395.
"""

from __future__ import annotations

from archcalc.checks import divides
from archcalc.families.latent import dense, latent_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

IGNORED = frozenset({"head_dim", "scale_emb", "scale_depth", "dim_model_base", "mup_denominator"})
STACK = {"vocab_size": 73448, "hidden_size": 2560, "num_hidden_layers": 62, "max_position_embeddings": 32768}
HEADS = {"num_attention_heads": 40, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
RELEASE = {"minicpm3": STACK | HEADS | {"intermediate_size": 6400, "q_lora_rank": 768, "kv_lora_rank": 256}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    hidden, heads = k.int("hidden_size"), k.int("num_attention_heads")
    divides(num_attention_heads=heads, hidden_size=hidden)
    view = k.view(k.raw | {"v_head_dim": k.int("v_head_dim", default=hidden // heads)}, {})
    return latent_decoder(view, same(dense(k, k.bool("mlp_bias", default=False))), eps=1e-5, tie=True)
