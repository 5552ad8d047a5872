"""Which parts of a config the reference models build. The others are refused by name, never left away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields

from archcalc import config
from archcalc.errors import ConfigError

# What is built of each part. A field that is not here must have its default.
BUILT = {
    config.ModelConfig: {
        "vocab_size", "hidden_size", "max_position_embeddings", "decoder", "encoder", "position_embedding",
        "tie_word_embeddings", "share_embeddings", "scale_embedding", "left_out", "name", "keys", "assumed",
        "quantization",
    },
    config.Block: {"self_attn", "mlp", "norm", "norm_placement", "cross_attn"},
    config.Attention: {
        "num_attention_heads", "num_key_value_heads", "head_dim", "q_bias", "k_bias", "v_bias", "o_bias", "rotary",
        "sliding_window", "causal",
    },
    config.Rotary: {"rope_theta", "rope_scaling"},
    config.RopeScaling: {f.name for f in fields(config.RopeScaling)},
    config.FeedForward: {"intermediate_size", "hidden_act", "gated", "bias"},
    config.MixtureOfExperts: {"expert", "num_local_experts", "num_experts_per_tok"},
    config.Norm: {"kind", "eps"},
    config.Stack: {"layers", "final_norm"},
}  # fmt: skip
VALUES = {
    "norm_placement": ("pre", "post"),
    "hidden_act": ("relu", "gelu", "gelu_tanh", "silu"),
    "rope_type": ("linear", "llama3"),
}


def _unbuilt(part: object) -> Iterator[str]:
    """What a part, or a part of it, asks for that is not built."""
    if type(part) not in BUILT:
        yield type(part).__name__
        return
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in BUILT[type(part)]:
            if value != default:
                yield f"{type(part).__name__}.{field.name}"
        elif field.name in VALUES:
            if value not in VALUES[field.name]:
                yield f"{field.name}={value!r}"
        elif field.name == "layers":
            for block in dict.fromkeys(value):
                yield from _unbuilt(block)
        elif type(value).__module__.startswith("archcalc.") and field.name != "quantization":
            yield from _unbuilt(value)


def unbuilt(model: config.ModelConfig) -> str | None:
    """The first part that the reference models do not build; None where they build the whole model."""
    if model.decoder is None:
        return "a model without a decoder"
    if any(block.self_attn is None or block.mlp is None for block in dict.fromkeys(model.decoder.layers)):
        return "a block without attention or without feed-forward"
    return next(_unbuilt(model), None)


def check_built(model: config.ModelConfig) -> None:
    """Raise ConfigError for a model with a part that is not built."""
    if part := unbuilt(model):
        raise ConfigError(
            f"{part}: counted, but not built as a PyTorch model; `archcalc report` has its numbers, for a build "
            "choose a model without it"
        )
