"""model_type gpt_neo: gpt2's block without biases of queries, keys and values; some layers see `window_size` tokens.

Hugging Face's cache keeps all tokens also in those; here a windowed layer keeps its window.
Source: Black et al. 2021, doi:10.5281/zenodo.5297715.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.errors import ConfigError
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys, shown

ALIASES = {
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
    "sliding_window": ("window_size",),
    "hidden_act": ("activation_function",),
}
IGNORED = frozenset({"attention_layers", "resid_dropout", "embed_dropout"})  # the first repeats attention_types
RELEASE = {
    "gpt_neo": {"vocab_size": 50257, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5))
    mlp = feed_forward(k, act="gelu_new", gated=False, bias=True, size=4 * k.int("hidden_size"))
    mixer = windowed(k, _windows(k), o_bias=True, scale=1.0)
    return model(k, decoder(k, mixer, same(mlp), norm), tie=True, positions=2048, position_embedding="learned")


def _windows(k: Keys) -> tuple:
    """`attention_types`, [[["global", "local"], 12]], written out; `attention_layers` is the same written out."""
    depth, window = layer_count(k), k.int("sliding_window", default=256)
    k.used.add("attention_types")
    types = k.raw.get("attention_types") or [[["global", "local"], 12]]
    try:
        kinds = [kind for names, times in types for _ in range(min(times, depth + 1)) for kind in names]
        windows = tuple({"global": None, "local": window}[kind] for kind in kinds)
    except (TypeError, ValueError, KeyError):
        raise ConfigError(f'attention_types={shown(types)}: must be as [[["global", "local"], 12]]; fix it') from None
    if len(windows) != depth or k.raw.get("attention_layers") not in (None, kinds):
        raise ConfigError(
            f"attention_types={shown(types)} with num_hidden_layers={depth}: must give each layer one kind, "
            "as attention_layers does; fix one of them"
        )
    return windows
