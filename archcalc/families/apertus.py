"""model_type apertus: the llama block with normed queries and keys and a plain feed-forward of xIELU.

Source: Swiss AI 2025, arXiv:2509.14233.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name, only in (("mlp_bias", False), ("post_norm", False), ("qk_norm", True)):
        k.must_be(name, only, "the family's class knows nothing else")
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="xielu", gated=False))
    return rotary_decoder(k, mlp, positions=65536, theta=1.2e7, norm=norm, qk_norm=norm)
