"""model_type granitemoehybrid: state spaces and attention, experts beside a shared feed-forward (or that alone).

Multipliers of the stream, the scores and the logits own nothing. Source: the released Granite 4.0 configs.
"""

from __future__ import annotations

from archcalc.families.bamba import SIZES, state_space
from archcalc.families.experts import ROUTING, dense, rms_norm, routed
from archcalc.families.granite import factors
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, LINEAR, attention, decoder, layer_count, layer_types, model, same
from archcalc.keys import Keys

ALIASES = {"layer_types": ("layers_block_type",)}
IGNORED = ROUTING | {
    "embedding_multiplier", "residual_multiplier", "init_method",
    "time_step_min", "time_step_max", "time_step_floor", "use_mamba_kernels", "intermediate_size",
    "num_experts_per_tok", "logits_to_keep",
}  # fmt: skip
RELEASE = {"granitemoehybrid": SIZES}
POSITIONS = {"rope": True, "nope": False, "none": False}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("normalization_function", "rmsnorm")
    norm, depth = rms_norm(k, 1e-6), layer_count(k)
    types = layer_types(k, depth, (LINEAR,) * depth, (LINEAR, FULL, "mamba", "attention"))
    positions, turned = k.choice("position_embedding_type", POSITIONS, default="none"), rotary(k, 1e4)
    own = factors(k)
    full = attention(k, rotary=turned if positions else None, scale=own["scale"])
    linear, shared = state_space(k, norm), dense(k, name="shared_intermediate_size")
    many = k.count("num_local_experts")
    mlp = routed(k, "intermediate_size", shared.intermediate_size) if many else shared
    stack = decoder(k, lambda layer: full if types[layer] in (FULL, "attention") else linear, same(mlp), norm)
    return model(k, stack, tie=False, positions=2048, **own["fields"])
