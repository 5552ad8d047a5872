"""model_type nanochat: the llama block with norms that own nothing, of queries and keys too, and squared ReLU.

Source: Karpathy 2025, github.com/karpathy/nanochat.
"""

from __future__ import annotations

from archcalc.config import Head, Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False, "the family's class has none")
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6), weight=False)
    cap = k.float("final_logit_softcapping", default=None if k.given("final_logit_softcapping") else 15.0)
    mlp = same(feed_forward(k, act="relu2", gated=False))
    return rotary_decoder(k, mlp, positions=2048, norm=norm, qk_norm=norm, fields={"head": Head(logit_softcap=cap)})
