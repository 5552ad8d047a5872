"""model_type mamba, falcon_mamba: blocks of one selective state space each, with no attention and no feed-forward.

Falcon Mamba also norms step, input and output of the state space, with norms that own nothing.
Source: Gu and Dao 2023, arXiv:2312.00752; Zuo et al. 2024, arXiv:2410.05355.
"""

from __future__ import annotations

from archcalc.config import LARGEST, Mamba, Norm
from archcalc.families.shared import ACTIVATIONS, decoder, model, same
from archcalc.keys import Keys

ALIASES = {"hidden_size": ("d_model",), "num_hidden_layers": ("n_layer",), "intermediate_size": ("d_inner",)}
# Bounds of the first time steps, precision and the choice of a kernel.
IGNORED = frozenset({
    "time_step_scale", "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme", "time_step_limit",
    "rescale_prenorm_residual", "residual_in_fp32", "use_mambapy", "use_falcon_mambapy", "use_associative_scan",
    "fused_add_norm",
})  # fmt: skip
SIZES = {"state_size": 16, "expand": 2, "conv_kernel": 4}
RELEASE = {"mamba": SIZES, "falcon_mamba": SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("rms_norm", True)
    k.must_be("ssm_cfg", {})
    k.choice("hidden_act", ACTIVATIONS, default="silu")
    norm = Norm("rmsnorm", k.float("layer_norm_epsilon", default=1e-5))
    inner = k.float("mixer_rms_eps", default=1e-6) if k.raw.get("model_type") == "falcon_mamba" else None
    mixer = Mamba(
        k.int("intermediate_size", default=None) or k.int("expand") * k.int("hidden_size"),
        k.int("state_size"),
        k.int("conv_kernel"),
        step_rank(k, "time_step_rank"),
        k.bool("use_bias", default=False),
        k.bool("use_conv_bias", default=True),
        Norm("rmsnorm", inner, weight=False) if inner else None,
    )
    k.used.add("expand")  # of no effect beside an intermediate_size
    return model(k, decoder(k, same(mixer), same(None), norm), tie=True, positions=LARGEST)


def step_rank(k: Keys, name: str) -> int:
    """The width from which time steps are made: given, or `auto`, a sixteenth of hidden_size."""
    if k.raw.get(name) in (None, "auto"):
        k.used.add(name)
        return -(-k.int("hidden_size") // 16)
    return k.int(name)
