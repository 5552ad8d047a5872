"""model_type bamba: state spaces, and attention in the layers that `attn_layer_indices` names; SwiGLU in all.

Source: the released Bamba configs; Dao and Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from archcalc.config import Mamba2, Norm
from archcalc.families.experts import dense, rms_norm
from archcalc.families.mamba2 import check_inner, step_limit
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, layer_count, model, same
from archcalc.keys import Keys

IGNORED = frozenset({
    "time_step_min", "time_step_max", "time_step_floor", "num_logits_to_keep", "z_loss_coefficient",
    "use_mamba_kernels", "attn_rotary_emb",
})  # fmt: skip
SIZES = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2}
RELEASE = {"bamba": SIZES | {"num_key_value_heads": 8}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, chosen = rms_norm(k, 1e-5), layers_of(k, "attn_layer_indices")
    full = attention(k, kv_heads=k.release["num_key_value_heads"], rotary=rotary(k, 1e4, 0.5))
    linear = state_space(k, norm)
    stack = decoder(k, lambda layer: full if layer in chosen else linear, same(dense(k)), norm)
    return model(k, stack, tie=False, positions=262144)


def layers_of(k: Keys, name: str) -> tuple[int, ...]:
    """The layers that a list names; it may name none, and layers that there are not."""
    layer_count(k)
    return k.ints(name) or ()


def state_space(k: Keys, norm: Norm | None, inner: int | None = None, **parts) -> Mamba2:
    """A state space from `mamba_*` keys.

    Args:
        inner: its width, where that is not `mamba_expand` times hidden_size. parts: further fields of Mamba2.
    """
    heads, whole = k.int("mamba_n_heads"), k.int("mamba_expand") * k.int("hidden_size")
    automatic = k.raw.get("mamba_d_head") in (None, "auto")
    k.used.add("mamba_d_head")
    head = (inner or whole) // heads if automatic else k.int("mamba_d_head")
    sizes = heads, head, k.int("mamba_d_state"), k.int("mamba_n_groups"), k.int("mamba_d_conv")
    biases = k.bool("mamba_proj_bias", default=False), k.bool("mamba_conv_bias", default=True)
    parts |= {"time_step_limit": step_limit(k), "norm_per_group": True}
    mixer = Mamba2(*sizes, *biases, norm, chunk_size=k.int("mamba_chunk_size", default=256), **parts)
    check_inner(mixer, inner or whole, "mamba_d_ssm" if inner else "mamba_expand x hidden_size")
    return mixer
