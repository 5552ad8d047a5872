"""model_type exaone_moe: norms of each head, three windowed layers of four, experts after the first layers.

Source: LG AI Research 2026, "K-EXAONE Technical Report"; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.errors import ConfigError
from archcalc.families.experts import (
    ROUTING,
    after_first,
    dense,
    mixed,
    mlp_layer_types,
    rms_norm,
    routed,
    switches,
    weighed,
)
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import periodic_windows, predictors
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts", "n_routed_experts"), "num_shared_experts": ("n_shared_experts",)}
IGNORED = ROUTING | {"reordered_norm", "mtp_loss_weight"}
RELEASE = {
    "exaone_moe": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "moe_intermediate_size": 1024, "num_experts_per_tok": 8, "num_local_experts": 64,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = rms_norm(k, 1e-5)
    k.must_be("attention_bias", False)
    shared = k.count("num_shared_experts", default=1) * k.int("moe_intermediate_size")
    experts = routed(k, shared=shared, correction_bias=True, **weighed(k, "sigmoid", scale=2.5, groups=(1, 1)))
    sparse = mlp_layer_types(k, lambda: switches(k, "is_moe_layer") or after_first(k, default=1))
    k.used |= {"is_moe_layer", "first_k_dense_replace"}  # other spellings of the same list
    fields = {"left_out": predictors(k)}
    windows = _windows(k)
    full = {"rotary": None} if any(windows) else {}  # beside windows, layers without have no positions
    return rotary_decoder(
        k, mixed(sparse, experts, dense(k)), positions=2048, norm=norm, windows=windows, full=full, kv_heads=32,
        qk_norm=norm, fields=fields,
    )  # fmt: skip


def _windows(k: Keys) -> tuple:
    """Each `sliding_window_pattern`-th layer has none; the pattern may be written as LLLG."""
    pattern = k.raw.get("sliding_window_pattern")
    if type(pattern) is str:
        if pattern != "L" * (len(pattern) - 1) + "G":
            raise ConfigError(f"sliding_window_pattern={pattern[:20]!r}: must end in its one global layer; write LLLG")
        k.used.add("sliding_window_pattern")
        k = k.view(k.raw | {"sliding_window_pattern": len(pattern)}, k.aliases)
    return periodic_windows(k, 4096, 4)
