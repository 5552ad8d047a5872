"""model_type biogpt: gpt2's block; the position table has two rows more than positions.

Source: Luo et al. 2022, arXiv:2210.10341.
"""

from __future__ import annotations

from archcalc.config import Embedding, Norm
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

IGNORED = frozenset({"layerdrop", "layer_norm_eps"})  # its norms have the usual epsilon, whatever the key says
RELEASE = {
    "biogpt": {
        "vocab_size": 42384, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, scaled = Norm("layernorm", 1e-5), k.bool("scale_embedding", default=True)
    mixer = windowed(k, (None,) * layer_count(k), bias=True)
    stack = decoder(k, mixer, same(feed_forward(k, act="gelu", gated=False, bias=True)), norm)
    fields = {"embedding": Embedding(position_offset=2), "position_embedding": "learned", "scale_embedding": scaled}
    return model(k, stack, tie=True, positions=1024, **fields)
