"""model_type falcon_h1: in every block attention and a state space side by side, then SwiGLU.

Multipliers own nothing. Source: Zuo et al. 2025, arXiv:2507.22448.
"""

from __future__ import annotations

from archcalc.config import Both
from archcalc.families.bamba import IGNORED as TIMES
from archcalc.families.bamba import SIZES, state_space
from archcalc.families.experts import dense, rms_norm
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, model, same
from archcalc.keys import Keys

IGNORED = TIMES | {
    "lm_head_multiplier", "embedding_multiplier", "mlp_multipliers", "key_multiplier", "attention_out_multiplier",
    "attention_in_multiplier", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier", "mamba_norm_before_gate",
    "mlp_expansion_factor",
}  # fmt: skip
RELEASE = {"falcon_h1": SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = rms_norm(k, 1e-5)
    k.must_be("mamba_use_mlp", True)
    k.must_be("attn_layer_indices", None)
    inner = k.int("mamba_d_ssm", default=None if k.given("mamba_d_ssm") else 1024)
    own = norm if k.bool("mamba_rms_norm", default=False) else None
    beside = state_space(k, own, inner, out_bias=k.bool("projectors_bias", default=False))
    mixer = Both(attention(k, kv_heads=8, rotary=rotary(k, 1e4)), beside)
    return model(k, decoder(k, same(mixer), same(dense(k)), norm), tie=False, positions=8192)
