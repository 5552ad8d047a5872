"""model_type gemma3_text: gemma2 with normed queries and keys; five of six layers windowed, with a base of their own.

With `use_bidirectional_attention` it is an encoder (EmbeddingGemma): a window of w tokens is w / 2 to either side.
Source: Gemma team 2025, arXiv:2503.19786; Schechter Vera et al. 2025, arXiv:2509.20354.
"""

from __future__ import annotations

from archcalc.config import Head
from archcalc.errors import ConfigError
from archcalc.families.gemma import gemma_decoder, gemma_norm
from archcalc.families.gemma2 import query_scale, soft_caps
from archcalc.families.rope import rotaries
from archcalc.families.shared import FULL, SLIDING, periodic_windows
from archcalc.keys import Keys, shown

ALIASES = {"hidden_act": ("hidden_activation",)}
IGNORED = frozenset({"cache_implementation"})
RELEASE = {"gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8}}  # absent in the released 4B to 27B


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    windows = periodic_windows(k, 4096, 6)
    bases = {SLIDING: ("rope_local_base_freq", 1e4), FULL: ("rope_theta", 1e6)}
    turned = rotaries(k, bases, (FULL,), positions=131072)
    parts = {"rotary": turned[SLIDING], "full": {"rotary": turned[FULL]}, "windows": windows}
    parts |= {"qk_norm": gemma_norm(k), "scale": query_scale(k)} | soft_caps(k, None, None)
    ahead = k.bool("use_bidirectional_attention", default=False)
    if ahead:
        parts |= {"causal": False, "windows": tuple(window and window // 2 for window in windows)}
    found = gemma_decoder(k, positions=131072, kv_heads=4, placement="sandwich", **parts)
    return _encoder(k, found) if ahead else found


def _encoder(k: Keys, fields: dict) -> dict:
    """The same stack as an encoder, which ends in no logits."""
    if k.architecture() != "none":
        raise ConfigError(
            f"use_bidirectional_attention=True with architectures={shown(k.raw.get('architectures'))}: logits of a "
            "model that looks ahead are not understood; give its ...Model"
        )
    return fields | {"encoder": fields["decoder"], "decoder": None, "head": Head("none")}
