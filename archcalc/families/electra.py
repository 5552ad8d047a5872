"""model_type electra: BERT with a narrow embedding; its discriminator tells real tokens from replaced ones.

Source: Clark et al. 2020, arXiv:2003.10555; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding, Head
from archcalc.families.encoder import IGNORED, encoder_model, post_norm_encoder, task, task_head
from archcalc.keys import Keys

__all__ = ["IGNORED", "RELEASE", "build"]

RELEASE = {
    "electra": {
        "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12,
        "num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 512, "type_vocab_size": 2,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    stack, norm = post_norm_encoder(k)
    width = k.int("embedding_size")
    parts = {} if width == k.int("hidden_size") else {"embedding_size": width, "projection_bias": True, "narrow": True}
    embedding = Embedding(type_vocab_size=k.count("type_vocab_size"), norm=norm, **parts)
    if task(k) == "ForPreTraining":
        head = Head("labels", bias=True, labels=1, every_token=True)
    else:
        head = task_head(k, norm, pooler=False)
    return encoder_model(k, stack, head, position_embedding="learned", embedding=embedding)
