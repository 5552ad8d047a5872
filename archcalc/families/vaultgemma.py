"""model_type vaultgemma: gemma2 without the norms after the sublayers. Source: Google 2025, arXiv:2510.15001."""

from __future__ import annotations

from archcalc.families.gemma import gemma_decoder
from archcalc.families.gemma2 import query_scale, soft_caps
from archcalc.families.shared import periodic_windows
from archcalc.keys import Keys

ALIASES = {"hidden_act": ("hidden_activation",)}
IGNORED = frozenset({"cache_implementation"})
RELEASE = {
    "vaultgemma": {
        "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
        "intermediate_size": 9216,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    windows, caps = periodic_windows(k, 4096, 2), soft_caps(k, 50.0, 30.0)
    return gemma_decoder(k, positions=8192, kv_heads=4, windows=windows, scale=query_scale(k), **caps)
