"""model_type olmo_hybrid: gated delta nets between norms before, attention between norms after each sublayer.

Source: the released OLMo Hybrid configs; Yang et al. 2024, arXiv:2412.06464.
"""

from __future__ import annotations

from archcalc.config import Block, GatedDeltaNet, Norm
from archcalc.families.experts import dense, rms_norm
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, LINEAR, attention, every, layer_count, layer_types, model, stack
from archcalc.keys import Keys

IGNORED = frozenset({
    "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
    "linear_allow_neg_eigval",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    depth, norm, mlp = layer_count(k), rms_norm(k, 1e-6), dense(k)
    types = every(4, FULL, LINEAR, depth)
    types = types if FULL in types else (*types[:-1], FULL)
    types = layer_types(k, depth, types, (FULL, LINEAR))
    full = Block(attention(k, rotary=rotary(k, 1e4), qk_norm=norm, qk_norm_over="all"), mlp, norm, "inner")
    linear = Block(_linear(k), mlp, norm)
    return model(
        k, stack(depth, lambda layer: full if types[layer] == FULL else linear, norm), tie=False, positions=65536
    )


def _linear(k: Keys) -> GatedDeltaNet:
    """Absent sizes are made of others, as in the Hugging Face class."""
    heads = k.int("num_attention_heads")
    keys, values = (k.int(f"linear_num_{side}_heads", default=heads) for side in ("key", "value"))
    width = k.int("linear_key_head_dim", default=3 * k.int("hidden_size") // (4 * keys))
    values_width = k.int("linear_value_head_dim", default=2 * width)
    return GatedDeltaNet(
        keys, values, width, values_width, k.int("linear_conv_kernel_dim", default=4), Norm("rmsnorm", 1e-5)
    )
