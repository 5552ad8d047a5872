"""model_type phi3: the llama block, all layers with one window or none; Phi-4 and Phi-4-mini are this too.

Source: Abdin et al. 2024, arXiv:2404.14219; Microsoft 2025, arXiv:2503.01743.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

# What was merged into the released weights; a context that only a stretch reads.
IGNORED = frozenset({"original_max_position_embeddings", "full_attn_mod", "interpolate_factor"})
RELEASE = {
    "phi3": {
        "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 8192,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        k.must_be(name, False, "this family has no biases")
    view = k.view(_renamed(k.raw), k.aliases)
    return rotary_decoder(view, same(feed_forward(k, act="silu", gated=True)), positions=4096, eps=1e-5)


def _renamed(raw: dict) -> dict:
    """The keys with the context before it was stretched; `yarn` was a first name of longrope here."""
    name, found = "original_max_position_embeddings", dict(raw)
    for outer in ("rope_scaling", "rope_parameters"):
        if type(inner := raw.get(outer)) is dict:
            found[outer] = {key: "longrope" if value == "yarn" else value for key, value in inner.items()}
            if name not in inner and raw.get(name) is None:
                found[name] = 4096
    return found
