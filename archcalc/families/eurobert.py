"""model_type eurobert: the block of Llama without a causal mask.

Source: Boizard et al. 2025, arXiv:2503.05500; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Head
from archcalc.families import encoder
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

IGNORED = encoder.IGNORED | {"mask_token", "pad_token", "bos_token", "eos_token", "classifier_pooling"}
IGNORED |= {"clf_pooling", "hidden_dropout"}
RELEASE = {
    "eurobert": {
        "vocab_size": 128256, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 8192,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    found = rotary_decoder(k, mlp, positions=8192, eps=1e-5, causal=False)
    stack = found["decoder"]
    head = encoder.task_head(k, stack.final_norm, pooler=False, lm=Head(bias=k.bool("mlp_bias", default=False)))
    return found | {"decoder": None, "encoder": stack, "head": head}
