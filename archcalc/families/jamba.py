"""model_type jamba: state spaces and, once a period of layers, attention without positions; experts in every second.

Source: Lieber et al. 2024, arXiv:2403.19887.
"""

from __future__ import annotations

from archcalc.config import Mamba, Norm
from archcalc.errors import ConfigError
from archcalc.families.experts import ROUTING, dense, rms_norm, routed
from archcalc.families.mamba import step_rank
from archcalc.families.shared import attention, decoder, layer_count, model
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {
    "use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "n_ctx",
    "calc_logits_for_entire_prompt", "num_experts_per_tok",
}  # fmt: skip
SIZES = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "num_local_experts": 16, "num_experts_per_tok": 2}
RELEASE = {"jamba": SIZES | {"num_key_value_heads": 8}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mamba_inner_layernorms", True)
    k.must_be("sliding_window", None)
    norm, depth = rms_norm(k, 1e-6), layer_count(k)
    mixed, sparse = _period(k, "attn_layer", 8, 4, depth), _period(k, "expert_layer", 2, 1, depth)
    full = attention(k, kv_heads=k.int("num_key_value_heads"))
    linear, plain = _mamba(k, norm), dense(k)
    several = k.int("num_local_experts") > 1 and any(sparse)  # a single expert is a plain feed-forward
    experts = routed(k, "intermediate_size", norm_topk_prob=False) if several else plain
    mixer, mlp = (lambda layer: full if mixed[layer] else linear), (lambda layer: experts if sparse[layer] else plain)
    return model(k, decoder(k, mixer, mlp, norm), tie=False, positions=262144)


def _mamba(k: Keys, norm: Norm) -> Mamba:
    sizes = k.int("mamba_expand") * k.int("hidden_size"), k.int("mamba_d_state"), k.int("mamba_d_conv")
    biases = k.bool("mamba_proj_bias", default=False), k.bool("mamba_conv_bias", default=True)
    return Mamba(*sizes, step_rank(k, "mamba_dt_rank"), *biases, norm)


def _period(k: Keys, name: str, period: int, offset: int, depth: int) -> list[bool]:
    """Which layers come `offset` after each multiple of a period. Arguments are the family's defaults."""
    period, offset = k.int(f"{name}_period", default=period), k.count(f"{name}_offset", default=offset)
    if offset >= period:
        raise ConfigError(f"{name}_offset={offset}: must be smaller than {name}_period={period}; fix one")
    return [layer % period == offset for layer in range(depth)]
