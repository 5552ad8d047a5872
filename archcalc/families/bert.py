"""model_type bert and its kin: a post-LayerNorm encoder with learned positions, token types and biases.

`architectures` names the head: a pooler (BertModel, also where the key is absent), the masked language model's, labels.
RoBERTa's first positions, up to that of `pad_token_id`, are padding: its max_position_embeddings counts them.
Source: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding
from archcalc.families.encoder import IGNORED, encoder_model, post_norm_encoder, task_head
from archcalc.keys import Keys

__all__ = ["IGNORED", "RELEASE", "build"]

BASE = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
RELEASE = {"bert": BASE, "roberta": BASE | {"vocab_size": 50265}, "xlm-roberta": BASE, "camembert": BASE}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    stack, norm = post_norm_encoder(k)
    padding = 0 if k.str("model_type") == "bert" else k.count("pad_token_id", default=1) + 1
    embedding = Embedding(type_vocab_size=k.count("type_vocab_size"), position_offset=padding, norm=norm)
    fields = {"max_position_embeddings": k.int("max_position_embeddings") - padding, "embedding": embedding}
    return encoder_model(k, stack, task_head(k, norm, pooler=True), position_embedding="learned", **fields)
