"""model_type mamba2: blocks of one state space with a decay a head, with no attention and no feed-forward.

Source: Dao and Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from archcalc.config import LARGEST, Mamba2, Norm
from archcalc.errors import ConfigError
from archcalc.families import mamba
from archcalc.families.shared import ACTIVATIONS, decoder, model, same
from archcalc.keys import Keys

IGNORED = mamba.IGNORED | {"time_step_rank", "norm_before_gate"}  # this kind makes steps without a rank
RELEASE = {
    "mamba2": {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2}
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("rms_norm", True)
    k.choice("hidden_act", ACTIVATIONS, default="silu")
    norm = Norm("rmsnorm", k.float("layer_norm_epsilon", default=1e-5))
    names = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    biases = k.bool("use_bias", default=False), k.bool("use_conv_bias", default=True)
    mixer = Mamba2(*map(k.int, names), *biases, norm, chunk_size=k.int("chunk_size", default=256))
    check_inner(mixer, k.int("expand") * k.int("hidden_size"), "expand x hidden_size")
    k.must_be("intermediate_size", mixer.num_heads * mixer.head_dim, "must be num_heads x head_dim")
    return model(k, decoder(k, same(mixer), same(None), norm), tie=False, positions=LARGEST)


def check_inner(mixer: Mamba2, width: int, name: str) -> None:
    """Raise ConfigError unless the heads together are as wide as the product or the key of that name says."""
    heads, size = mixer.num_heads, mixer.head_dim
    if heads * size != width:
        raise ConfigError(f"{name}={width}: {heads} heads of {size} are {heads * size} wide; fix one of them")
