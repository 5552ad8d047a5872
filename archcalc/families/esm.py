"""model_type esm: pre-LayerNorm encoder of proteins, with rotary or learned positions and a head for contacts.

Source: Rives et al. 2021, doi:10.1073/pnas.2016239118; Lin et al. 2023, doi:10.1126/science.ade2574; Hugging Face
defaults.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Embedding, Norm
from archcalc.families import encoder
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, feed_forward, same
from archcalc.keys import Keys

IGNORED = encoder.IGNORED | {"token_dropout", "vocab_list"}
RELEASE = {
    "esm": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "max_position_embeddings": 1026,
    }
}  # fmt: skip
POSITIONS = {"absolute": "learned", "rotary": "none"}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("is_folding_model", False, "a structure module is not understood")
    norm = Norm("layernorm", k.float("layer_norm_eps", default=1e-12))
    positions = k.choice("position_embedding_type", POSITIONS, default="absolute")
    mixer = attention(k, bias=True, causal=False, rotary=rotary(k, 1e4) if positions == "none" else None)
    stack = decoder(k, same(mixer), same(feed_forward(k, act="gelu", gated=False, bias=True)), norm)
    head = replace(encoder.task_head(k, norm, pooler=True), contacts=True)
    embedding = Embedding(norm=norm if k.bool("emb_layer_norm_before", default=False) else None)
    return encoder.encoder_model(k, stack, head, position_embedding=positions, embedding=embedding)
