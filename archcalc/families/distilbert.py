"""model_type distilbert: the block of BERT, half as many of them, without token types and pooler.

Source: Sanh et al. 2019, arXiv:1910.01108; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding
from archcalc.families import encoder
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("dim",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "intermediate_size": ("hidden_dim",),
    "hidden_act": ("activation",),
}
IGNORED = encoder.IGNORED | {"qa_dropout", "seq_classif_dropout", "tie_weights_"}
RELEASE = {
    "distilbert": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    stack, norm = encoder.post_norm_encoder(k)
    sinusoids = k.bool("sinusoidal_pos_embds", default=False)  # a table all the same
    embedding = Embedding(norm=norm, stored_sinusoids=sinusoids)
    head, kind = encoder.task_head(k, norm, pooler=False), "sinusoidal" if sinusoids else "learned"
    return encoder.encoder_model(k, stack, head, position_embedding=kind, embedding=embedding)
