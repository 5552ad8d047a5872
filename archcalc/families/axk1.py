"""model_type axk1: deepseek_v3's block with a norm after the experts.

Source: the released A.X-K1 config.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import HEAD, feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts",)}
IGNORED = latent.IGNORED
STACK = {"vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64}
DENSE = {"intermediate_size": 18432, "first_k_dense_replace": 1, "q_lora_rank": 1536, "max_position_embeddings": 32768}
EXPERTS = {"n_routed_experts": 192, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8}
RELEASE = {"axk1": HEAD | STACK | DENSE | EXPERTS}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6))
    routing = weighed(k, "sigmoid", scale=2.5, groups=(8, 4))
    return latent_decoder(k, feed_forwards(k, listed=True, output_norm=norm, **routing), eps=1e-6)
