"""model_type mpnet: BERT without token types, with a bias by distance that all layers share.

Source: Song et al. 2020, arXiv:2004.09297; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding
from archcalc.families.encoder import IGNORED, encoder_model, post_norm_encoder, task_head
from archcalc.keys import Keys

__all__ = ["IGNORED", "RELEASE", "build"]

RELEASE = {
    "mpnet": {
        "vocab_size": 30527, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "relative_attention_num_buckets": 32,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    stack, norm = post_norm_encoder(k, relative=k.int("relative_attention_num_buckets"))
    head = task_head(k, norm, pooler=True)
    return encoder_model(k, stack, head, position_embedding="learned", embedding=Embedding(norm=norm))
