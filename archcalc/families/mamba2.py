"""model_type mamba2: blocks of one state space with a decay a head, with no attention and no feed-forward.

Source: Dao and Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from math import inf

from archcalc.config import LARGEST, Mamba2, Norm
from archcalc.errors import ConfigError
from archcalc.families import mamba
from archcalc.families.shared import ACTIVATIONS, decoder, model, same
from archcalc.keys import Keys, shown

IGNORED = mamba.IGNORED - {"time_step_limit"} | {"time_step_rank", "norm_before_gate"}  # its steps have no rank
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
    parts = {"chunk_size": k.int("chunk_size", default=256), "time_step_limit": step_limit(k), "norm_per_group": True}
    mixer = Mamba2(*map(k.int, names), *biases, norm, **parts)
    check_inner(mixer, k.int("expand") * k.int("hidden_size"), "expand x hidden_size")
    k.must_be("intermediate_size", mixer.num_heads * mixer.head_dim, "must be num_heads x head_dim")
    return model(k, decoder(k, same(mixer), same(None), norm), tie=False, positions=LARGEST)


def step_limit(k: Keys) -> tuple[float, float]:
    """The range to which time steps are cut; JSON may spell an infinite end as {"__float__": "Infinity"}."""
    k.used.add("time_step_limit")
    given = k.raw.get("time_step_limit") or (0.0, inf)
    ends = [inf if end == {"__float__": "Infinity"} else end for end in given] if type(given) in (list, tuple) else []
    if len(ends) != 2 or not all(type(end) in (int, float) for end in ends) or not 0 <= ends[0] <= ends[1]:
        raise ConfigError(f"time_step_limit={shown(given)}: must be two numbers from 0, the smaller one first; fix it")
    return tuple(float(end) if end < 1e300 else inf for end in ends)


def check_inner(mixer: Mamba2, width: int, name: str) -> None:
    """Raise ConfigError unless the heads together are as wide as the product or the key of that name says."""
    heads, size = mixer.num_heads, mixer.head_dim
    if heads * size != width:
        raise ConfigError(f"{name}={width}: {heads} heads of {size} are {heads * size} wide; fix one of them")
