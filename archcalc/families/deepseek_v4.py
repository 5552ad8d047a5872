"""model_type deepseek_v4: a window of tokens beside compressed entries, several residual streams, experts everywhere.

`deepseek_ref` has the same keys. Source: DeepSeek-AI 2026, the released DeepSeek-V4 configs.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import CompressedAttention, FeedForward, Indexer, MixtureOfExperts, Norm, Rotary
from archcalc.errors import ConfigError
from archcalc.families.experts import weighed
from archcalc.families.latent import IGNORED as ROUTING
from archcalc.families.rope import rotaries
from archcalc.families.shared import ACTIVATIONS, SLIDING, decoder, layer_count, layer_types, model, predictors
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts",), "moe_intermediate_size": ("intermediate_size",)}
IGNORED = ROUTING - {"head_dim"} | {
    "hc_sinkhorn_iters",
    "hc_eps",
    "swiglu_limit",
    "expert_dtype",
    "n_group",
    "topk_group",
}
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # how compress_ratios names them
RATES = {SPARSE: 4, HEAVY: 128}
STACK = {"vocab_size": 129280, "hidden_size": 4096, "num_hidden_layers": 43, "max_position_embeddings": 1048576}
HEADS = {"num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024}
INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 512}
EXPERTS = {"moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 6, "num_hash_layers": 3}
RELEASE = {"deepseek_v4": STACK | HEADS | INDEX | EXPERTS | {"sliding_window": 128, "hc_mult": 4}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    depth, norm = layer_count(k), Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6))
    types, made = attention_kinds(k, depth), _attentions(k, norm)
    hashed, routed = (_experts(k, hashed) for hashed in (True, False))
    first = _hash_layers(k, depth)
    view = k.view(k.raw | {"hc_mult": k.int("hc_mult")}, k.aliases)
    stack = decoder(view, lambda layer: made[types[layer]], lambda layer: hashed if first[layer] else routed, norm)
    return model(k, stack, tie=False, left_out=predictors(k))


def attention_kinds(k: Keys, depth: int) -> tuple[str, ...]:
    """The attention of each layer: `layer_types`, or `compress_ratios`, which may go on for layers that predict."""
    ratios = k.ints("compress_ratios")
    for ratio in ratios or ():
        if ratio not in RATIOS:
            raise ConfigError(f"compress_ratios={ratio}: not understood; use 0, 4 or 128")
    if ratios is not None and len(ratios) < depth:
        raise ConfigError(f"compress_ratios of {len(ratios)} entries with num_hidden_layers={depth}: one a layer")
    default = tuple(SPARSE if layer % 2 and layer > 1 else HEAVY for layer in range(depth))
    default = tuple(RATIOS[ratio] for ratio in ratios[:depth]) if ratios else default
    types = layer_types(k, depth, default, tuple(RATIOS.values()))
    if ratios and types != default:
        raise ConfigError("layer_types with compress_ratios: they disagree; give only one")
    return types


def _attentions(k: Keys, norm: Norm) -> dict[str, CompressedAttention]:
    """Each kind of attention by its name."""
    k.must_be("num_key_value_heads", 1)
    k.must_be("attention_bias", False)
    rates, rope, head = _rates(k), k.int("qk_rope_head_dim", default=64), k.int("head_dim")
    if rope > head:
        raise ConfigError(f"qk_rope_head_dim={rope}: is a part of head_dim={head}; give a smaller one")
    sizes = k.int("num_attention_heads"), head, k.int("q_lora_rank"), k.int("o_groups"), k.int("o_lora_rank")
    main, compressed = _rotaries(k, rope / head)
    parts = {"sliding_window": k.int("sliding_window"), "norm": norm, "rotary": compressed}
    indexer = Indexer(*map(k.int, INDEX))
    return {
        SLIDING: CompressedAttention(*sizes, **parts | {"rotary": main}),
        SPARSE: CompressedAttention(*sizes, **parts, compress_rate=rates[SPARSE], indexer=indexer),
        HEAVY: CompressedAttention(*sizes, **parts, compress_rate=rates[HEAVY]),
    }


def _rotaries(k: Keys, share: float) -> tuple[Rotary, Rotary]:
    """Of windowed layers and of those that compress, whose yarn has no attention factor unless it is given."""
    bases = {"main": ("rope_theta", 1e4), "compress": ("compress_rope_theta", 1.6e5)}
    view = k.view(_without_base(k.raw), k.aliases)
    main, compressed = rotaries(view, bases, ("compress",), share, interleaved=True).values()
    given = k.raw.get("rope_parameters") or k.raw.get("rope_scaling") or {}
    if compressed.rope_scaling and (given.get("compress") or given).get("attention_factor") is None:
        compressed = replace(compressed, rope_scaling=replace(compressed.rope_scaling, attention_factor=1.0))
    return main, compressed


def _without_base(raw: dict) -> dict:
    """The keys with parameters that have no base: one that holds for no kind of layer is of the windowed ones."""
    found = dict(raw)
    for name in ("rope_scaling", "rope_parameters"):
        inner = raw.get(name)
        if type(inner) is dict and not any(type(value) is dict for value in inner.values()):
            found[name] = {key: value for key, value in inner.items() if key != "rope_theta"}
    return found


def _rates(k: Keys) -> dict[str, int]:
    """How many tokens make an entry, by the kind of attention."""
    nested = k.nested("compress_rates")
    found = {kind: nested.int(kind) for kind in RATES} if nested else dict(RATES)
    if nested:
        nested.finish()
    for kind, old in {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}.items():
        found[kind] = k.int(old, default=found[kind])
    return found


def _experts(k: Keys, hashed: bool) -> MixtureOfExperts:
    """Routed experts and a shared one; a table from token to experts chooses them, or the router with its bias."""
    k.must_be("n_shared_experts", 1)
    width, act = k.int("moe_intermediate_size"), k.choice("hidden_act", ACTIVATIONS, default="silu")
    shared = FeedForward(width, act, True, k.bool("mlp_bias", default=False))
    sizes = k.int("n_routed_experts"), k.int("num_experts_per_tok")
    rows = k.int("vocab_size") if hashed else None
    parts = {"correction_bias": not hashed, "hash_size": rows} | weighed(k, scale=1.5)
    return MixtureOfExperts(FeedForward(width, act, True), *sizes, shared, **parts)


def _hash_layers(k: Keys, depth: int) -> tuple[bool, ...]:
    """Of each layer, whether a table chooses its experts: `mlp_layer_types`, or the first `num_hash_layers`."""
    types = k.strings("mlp_layer_types", ("hash_moe", "moe"))
    if types is not None and len(types) != depth:
        raise ConfigError(f"mlp_layer_types of {len(types)} entries with num_hidden_layers={depth}: one a layer")
    count = k.count("num_hash_layers") if types is None or k.raw.get("num_hash_layers") is not None else None
    default = types if count is None else tuple("hash_moe" if layer < count else "moe" for layer in range(depth))
    if types not in (None, default):
        raise ConfigError(f"num_hash_layers={count} with mlp_layer_types: they disagree; give only one")
    return tuple(kind == "hash_moe" for kind in default)
