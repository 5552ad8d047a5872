"""model_type albert: BERT with a narrow embedding, whose layers of a group all run one layer's weights.

Source: Lan et al. 2019, arXiv:1909.11942; Hugging Face defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Embedding, Stack
from archcalc.errors import ConfigError
from archcalc.families.encoder import IGNORED, encoder_model, post_norm_encoder, task_head
from archcalc.keys import Keys

__all__ = ["IGNORED", "RELEASE", "build"]

RELEASE = {
    "albert": {
        "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_hidden_layers": 12,
        "num_attention_heads": 64, "intermediate_size": 16384, "max_position_embeddings": 512, "type_vocab_size": 2,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    stack, norm = post_norm_encoder(k, act="gelu_new")
    embedding = Embedding(k.int("embedding_size"), True, True, k.count("type_vocab_size"), norm=norm)
    head = task_head(k, norm, pooler=True)
    return encoder_model(k, _shared(k, stack), head, position_embedding="learned", embedding=embedding)


def _shared(k: Keys, stack: Stack) -> Stack:
    """Layer i of L runs the weights of group floor(i·groups/L)."""
    k.must_be("inner_group_num", 1, "several layers a group are not understood")
    groups, depth = k.int("num_hidden_groups", default=1), len(stack.layers)
    if groups > depth:
        raise ConfigError(f"num_hidden_groups={groups}: more than the {depth} layers; give at most {depth}")
    first, repeated = stack.layers[0], replace(stack.layers[0], repeated=True)
    owners = [i == 0 or i * groups // depth > (i - 1) * groups // depth for i in range(depth)]
    return Stack(tuple(first if owner else repeated for owner in owners), stack.final_norm)
