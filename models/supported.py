"""Which parts of a config the reference models do not build. They are refused by name, never left away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields

from archcalc import config
from archcalc.errors import ConfigError
from models.names import COMPUTED, HUGGING_FACE

KINDS = {
    "ModelConfig", "Block", "Stack", "Attention", "LatentAttention", "Mamba2", "GatedDeltaNet", "FeedForward",
    "MixtureOfExperts", "Norm", "Rotary", "RopeScaling", "Embedding", "Head", "ConvFrontend", "Residual",
}  # fmt: skip
# Fields of those that must have their default.
UNBUILT = {
    "Block": {"repeated"},
    "Attention": {"values_are_keys", "shares_cache", "disentangled", "output_norm"},
    "LatentAttention": {"indexer", "output_gate"},
    "FeedForward": {"inner_norm"},
    "MixtureOfExperts": {
        "latent_size", "router_scales", "norms", "hash_size", "output_bias", "output_norm",
    },
    "Embedding": {"embedding_size"},
    "Head": {"contacts", "beside"},
    "Residual": {"hyper", "scalar", "per_layer"},
}  # fmt: skip
# Fields of which only these values are built.
VALUES = {
    "hidden_act": ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu"),
    "rope_type": ("linear", "llama3", "yarn", "longrope"),
    "qk_norm_over": ("head", "all"),
    "kind": ("layernorm", "rmsnorm", "lm", "mlm", "pooler", "none"),
}
MOST_EXPERTS = 40_000  # more than those of the largest published model; each is a module, also without weights
OWN = "transformer"  # the type of configs that are nobody's
NOT_BUILT_FROM = {"quantization", "left_out", "keys", "assumed", "name"}


def _unbuilt(part: object) -> Iterator[str]:
    """What a part, or a part of it, asks for that is not built."""
    kind = type(part).__name__
    if kind not in KINDS:
        yield kind
        return
    yield from _contradictions(part)
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name in UNBUILT.get(kind, ()) and value != default:
            yield f"{kind}.{field.name}"
        elif field.name in VALUES and value not in VALUES[field.name]:
            yield f"{field.name}={value!r}"
        elif field.name == "rope_type" and value == "longrope" and not (part.long_factor and part.short_factor):
            yield "longrope without its factors"
        elif field.name == "layers":
            for block in dict.fromkeys(value):
                yield from _unbuilt(block)
        elif type(value).__module__.startswith("archcalc.") and field.name not in NOT_BUILT_FROM:
            yield from _unbuilt(value)


def _contradictions(part: object) -> Iterator[str]:
    """What the fields of a part ask for together, and that no module does."""
    if isinstance(part, config.Attention) and not part.causal and (part.sliding_window or part.alibi):
        yield "a window, or a bias by distance, that looks both ways"
    cross = part.cross_attn if isinstance(part, config.Block) else None
    if cross and (cross.rotary or cross.alibi or cross.relative_buckets):
        yield "positions in cross-attention"
    if isinstance(part, config.MixtureOfExperts):
        experts, groups, chosen = part.num_local_experts, part.n_group, part.topk_group
        whole = groups >= 1 and experts % groups == 0 and 1 <= chosen <= groups
        if not whole or (
            groups > 1 and (experts < 2 * groups or part.num_experts_per_tok > chosen * experts // groups)
        ):
            yield f"topk_group={chosen} of n_group={groups} of {experts} experts, {part.num_experts_per_tok} a token"


def unbuilt(model: config.ModelConfig) -> str | None:
    """The first part that the reference models do not build; None where they build the whole model."""
    return next(_unbuilt(model), None)


def check_built(model: config.ModelConfig) -> None:
    """Raise ConfigError for a model with a part that is not built, or with more parts than any machine takes."""
    layers = [block.mlp for stack in model.stacks.values() for block in stack.layers]
    experts = sum(mlp.num_local_experts for mlp in layers if isinstance(mlp, config.MixtureOfExperts))
    if experts > MOST_EXPERTS:
        raise ConfigError(
            f"num_local_experts: {experts:,} experts in all layers, more than {MOST_EXPERTS:,}; set fewer for a build"
        )
    if part := unbuilt(model):
        raise ConfigError(
            f"{part}: counted, but not built as a PyTorch model; `archcalc report` has its numbers, for a build "
            "choose a model without it"
        )


def check_computed(model: config.ModelConfig) -> None:
    """Raise ConfigError for a model type that was never compared with its public implementation, or for a key of it
    that changes values and that no part says. A config written by hand, or of type `transformer`, has none.
    """
    keys = model.keys or {}
    kind = keys.get("model_type", OWN)
    if kind != OWN and kind not in HUGGING_FACE:
        raise ConfigError(
            f"model_type={kind!r}: its parts are built, but were never compared with the public implementation; "
            "build it on the meta device, for names and shapes alone, or choose one that `python -m models parity` has"
        )
    for name, value in COMPUTED.get(kind, {}).items():
        if keys.get(name, value) != value:
            raise ConfigError(f"{name}={keys[name]!r}: the models compute {value!r} only, no part says otherwise")
