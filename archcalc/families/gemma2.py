"""model_type gemma2: gemma with norms on both sides of a sublayer, soft caps, and every other layer windowed.

Source: Gemma team 2024, arXiv:2408.00118.
"""

from __future__ import annotations

from archcalc.config import Head
from archcalc.errors import ConfigError
from archcalc.families.gemma import gemma_decoder
from archcalc.families.shared import periodic_windows
from archcalc.keys import Keys

ALIASES = {"hidden_act": ("hidden_activation",), "sliding_window": ("sliding_window_size",)}
IGNORED = frozenset({"cache_implementation"})
RELEASE = {
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
        "intermediate_size": 9216,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    windows = periodic_windows(k, 4096, 2)
    parts = {"windows": windows, "scale": query_scale(k)} | soft_caps(k, 50.0, 30.0)
    return gemma_decoder(k, positions=8192, kv_heads=4, placement="sandwich", **parts)


def query_scale(k: Keys) -> float:
    """What scores are multiplied by: 1 / sqrt(query_pre_attn_scalar), whatever the width of a head."""
    scalar = k.float("query_pre_attn_scalar", default=256.0)
    if scalar <= 0:
        raise ConfigError(f"query_pre_attn_scalar={scalar!r}: must be positive; head_dim is usual")
    return scalar**-0.5


def soft_caps(k: Keys, scores: float | None, logits: float | None) -> dict:
    """The caps of attention scores and of logits; arguments are the defaults of absent keys, a null is no cap."""

    def cap(name: str, default: float | None) -> float | None:
        return k.float(name, default=None if k.given(name) else default)

    head = Head(logit_softcap=cap("final_logit_softcapping", logits))
    return {"logit_softcap": cap("attn_logit_softcapping", scores), "fields": {"head": head}}
