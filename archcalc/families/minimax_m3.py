"""model_type minimax_m3 and the text of minimax_m3_vl: attention to chosen blocks of keys, experts, first layers dense.

Source: the released MiniMax-M3 configs.
"""

from __future__ import annotations

from archcalc.config import BlockIndexer, BlockSparseAttention, FeedForward, MixtureOfExperts, Norm
from archcalc.errors import ConfigError
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, attention, decoder, layer_count, layer_types, model, predictors
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",), "intermediate_size": ("moe_intermediate_size",)}
# What the class fixes: the slope of the activation, how experts are chosen.
IGNORED = frozenset({
    "swiglu_alpha", "rotary_dim", "scoring_func", "output_router_logits",
    "router_aux_loss_coef", "router_jitter_noise",
})  # fmt: skip
SPARSE = "minimax_m3_sparse"
ACTS = {"silu": "silu", "swigluoai": "silu"}  # two names of the one that it has
STACK = {"vocab_size": 200064, "hidden_size": 6144, "num_hidden_layers": 60, "max_position_embeddings": 524288}
HEADS = {"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128}
WIDTHS = {"intermediate_size": 3072, "dense_intermediate_size": 12288, "shared_intermediate_size": 3072}
EXPERTS = {"num_local_experts": 128, "num_experts_per_tok": 4}
# The flat key of each size of the indexer, and its name inside sparse_attention_config.
INDEX = {
    "index_n_heads": ("sparse_num_index_heads", 4), "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128), "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}  # fmt: skip
M3 = STACK | HEADS | WIDTHS | EXPERTS | {name: size for name, (_, size) in INDEX.items()}
RELEASE = {"minimax_m3_vl_text": M3}


# What the class has at one value only.
FIXED = {
    "use_gemma_norm": True, "use_qk_norm": True, "qk_norm_type": "per_head", "use_routing_bias": True,
    "attention_output_gate": False, "attention_bias": False, "n_shared_experts": 1,
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name, allowed in FIXED.items():
        k.must_be(name, allowed)
    depth, norm = layer_count(k), Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6), offset=1.0)
    kv_heads, head = k.int("num_key_value_heads"), k.int("head_dim")
    full = attention(k, kv=kv_heads, head=head, rotary=rotary(k, 5e6), qk_norm=norm)
    indexer, types = _sparse(k, norm, depth)
    made = {FULL: full, SPARSE: BlockSparseAttention(**vars(full), indexer=indexer)}
    routed, dense, sparse = _experts(k), _wide(k, "dense_intermediate_size"), _sparse_layers(k, depth)
    stack = decoder(k, lambda layer: made[types[layer]], lambda layer: routed if sparse[layer] else dense, norm)
    ahead, same = predictors(k, "num_mtp_modules"), predictors(k)
    return model(k, stack, tie=False, left_out=ahead or same)


def _wide(k: Keys, name: str) -> FeedForward:
    act, limit = k.choice("hidden_act", ACTS, default="silu"), k.float("swiglu_limit", default=7.0)
    return FeedForward(k.int(name), act, True, swiglu_limit=limit)


def _experts(k: Keys) -> MixtureOfExperts:
    sizes = k.int("num_local_experts"), k.int("num_experts_per_tok")
    shared = _wide(k, "shared_intermediate_size")
    routing = {"scoring": "sigmoid", "routed_scaling_factor": k.float("routed_scaling_factor", default=2.0)}
    return MixtureOfExperts(_wide(k, "intermediate_size"), *sizes, shared, correction_bias=True, **routing)


def _one_a_layer(values: tuple, name: str, depth: int) -> tuple:
    if len(values) != depth:
        raise ConfigError(f"{name} of {len(values)} entries with num_hidden_layers={depth}: one a layer; give {depth}")
    return values


def _sparse_layers(k: Keys, depth: int) -> tuple[bool, ...]:
    """Of each layer, whether it has experts; `first_k_dense_replace` must say the same where it is given."""
    listed, switches = k.strings("mlp_layer_types", ("dense", "sparse")), k.ints("moe_layer_freq") or (1,) * depth
    switches = switches if listed is None else tuple(kind == "sparse" for kind in listed)
    found = tuple(map(bool, _one_a_layer(switches, "moe_layer_freq", depth)))
    first = k.count("first_k_dense_replace", default=None)
    if first is not None and found != tuple(layer >= first for layer in range(depth)):
        raise ConfigError(f"first_k_dense_replace={first} with moe_layer_freq: they disagree; give only one")
    return found


def _sparse(k: Keys, norm: Norm, depth: int) -> tuple[BlockIndexer, tuple[str, ...]]:
    """The indexer, and of each layer whether it has one; sizes lie flat or in `sparse_attention_config`."""
    nested = k.nested("sparse_attention_config") or Keys({})
    inner = {name: nested.int(old, default=None) for name, (old, _) in INDEX.items()}
    view = k.view({n: v for n, v in k.raw.items() if inner.get(n) is None} | {n: v for n, v in inner.items() if v}, {})
    heads, head, block, topk, local = map(view.int, INDEX)
    if local > topk:
        raise ConfigError(f"index_local_blocks={local} with index_topk_blocks={topk}: no room for all; give fewer")
    for name, allowed in {"use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}.items():
        nested.must_be(name, allowed)
    switches = _one_a_layer(nested.ints("sparse_attention_freq") or (0,) * depth, "sparse_attention_freq", depth)
    without = nested.ints("sparse_disable_index_value") or (1,) * depth
    without = _one_a_layer(without, "sparse_disable_index_value", depth)
    types = layer_types(k, depth, tuple(SPARSE if on else FULL for on in switches), (FULL, SPARSE))
    if any(kind == SPARSE and not off for kind, off in zip(types, without, strict=True)):
        raise ConfigError("sparse_disable_index_value=0: values of the indexer are not understood; set it to 1")
    nested.finish()
    return BlockIndexer(heads, head, block, topk, norm), types
