"""model_type youtu: deepseek_v3's attention with a dense feed-forward in every layer.

Source: the released Youtu-LLM config.
"""

from __future__ import annotations

from archcalc.families.latent import HEAD, dense, latent_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

IGNORED = frozenset({"rope_interleave", "head_dim", "embedding_initializer_range"})
STACK = {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 32, "max_position_embeddings": 131072}
RELEASE = {"youtu": HEAD | STACK | {"num_attention_heads": 16, "intermediate_size": 6144, "q_lora_rank": 1536}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    return latent_decoder(k, same(dense(k)), eps=1e-6, tie=True)
