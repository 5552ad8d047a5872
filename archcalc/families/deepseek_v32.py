"""model_type deepseek_v32: deepseek_v3's block whose attention reads only the keys that an indexer chooses.

Source: DeepSeek-AI 2025, arXiv:2512.02556.
"""

from __future__ import annotations

from archcalc.config import Indexer
from archcalc.families import latent
from archcalc.families.deepseek_v3 import V3
from archcalc.families.experts import weighed
from archcalc.families.latent import feed_forwards, latent_decoder
from archcalc.families.shared import every_layer_is
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts", "num_experts")}
IGNORED = latent.IGNORED
INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
RELEASE = {"deepseek_v32": V3 | INDEX | {"max_position_embeddings": 163840}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    every_layer_is(k, "indexed_attention", "deepseek_sparse_attention")
    mlp = feed_forwards(k, listed=True, **weighed(k, "sigmoid", scale=2.5, groups=(8, 4)))
    return latent_decoder(k, mlp, eps=1e-6, indexer=Indexer(*map(k.int, INDEX)))
