"""model_type llama: pre-RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

Defaults of absent keys are those of the Hugging Face class; sizes have none.
Source: Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.shared import decoder, feed_forward, model, rotary
from archcalc.keys import Keys

ALIASES: dict = {}
IGNORED: frozenset = frozenset()


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return rotary_decoder(k, feed_forward(k, act="silu", gated=True, bias=False), positions=2048)


def rotary_decoder(k: Keys, mlp, *, positions: int, theta=1e4, eps=1e-6, kv_heads=None, window=None) -> dict:
    """The shape that llama, mistral and mixtral share; the arguments are defaults of absent keys."""
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=eps))
    stack = decoder(k, mlp=mlp, norm=norm, bias=False, kv_heads=kv_heads, rotary=rotary(k, theta), window=window)
    return model(k, stack, tie=False, positions=positions)
