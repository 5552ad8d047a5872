"""From a `ModelConfig` to its op list: the contraction of every matrix, in the order in which they run.

Written by hand against the architecture, not generated from the PyTorch models: the two meet in the
contract tests, which demand equal parameter names, shapes, FLOPs and cache bytes.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from archcalc.config import Attention, Block, FeedForward, MixtureOfExperts, ModelConfig, Norm, Stack, once_a_config
from archcalc.ops import Mask, Op, Tensor, activation, cache, weight


class Group(NamedTuple):
    """Ops that run together, `count` times in one pass.

    Args:
        path: where the reference model keeps them; `*` stands for the layer's index.
        dims: the axis sizes that the model fixes.
        once: runs once a source, in the encode pass; the others run in every decoder pass.
        block: the kind of block that it belongs to, `block`, `encoder block`, `block 2`; empty outside of blocks.
    """

    path: str
    count: int
    dims: dict[str, int]
    ops: tuple[Op, ...]
    once: bool = False
    block: str = ""


def _linear(name: str, x: str, matrix: str, y: str, bias: bool, role: str = "activation") -> Op:
    """y = x·matrix (+ bias over the axes of y that the matrix makes)."""
    made = "".join(a for a in matrix if a in y)
    inputs = (activation(x), weight(matrix)) + ((weight(made),) if bias else ())
    return Op(name, inputs, Tensor(role, y))


@lru_cache(maxsize=256)
def attention_ops(attention: Attention, name: str) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(ops over the queries, ops that make keys and values) of self- or cross-attention.

    The scores stay on the chip: every current engine fuses the two products (Dao 2022, arXiv:2205.14135).
    Cross-attention's keys lie along X, the source, and have no mask.
    """
    keys, scores = "BSKH", Tensor("chip", "BKGTS")
    mask: Mask | None = Mask(attention.causal, "W" if attention.sliding_window else None)
    if name == "cross_attn":
        keys, scores, mask = "BXKH", Tensor("chip", "BKGTX"), None
    output = (activation("BTNH"), weight("NHD")) + ((weight("D"),) if attention.o_bias else ())
    queries = (
        _linear(f"{name}.q_proj", "BTD", "DNH", "BTNH", attention.q_bias),
        Op(f"{name}.scores", (activation("BTKGH"), cache(keys)), scores, mask=mask),
        Op(f"{name}.context", (scores, cache(keys)), activation("BTKGH"), mask=mask),
        Op(f"{name}.o_proj", output, activation("BTD")),
    )
    keys_values = (
        _linear(f"{name}.k_proj", "BTD", "DKH", "BTKH", attention.k_bias, "cache"),
        _linear(f"{name}.v_proj", "BTD", "DKH", "BTKH", attention.v_bias, "cache"),
    )
    return queries, keys_values


@lru_cache(maxsize=256)
def feed_forward_ops(mlp: FeedForward | MixtureOfExperts) -> tuple[Op, ...]:
    """Two or three matrices, or a router and the experts that each token is sent to."""
    if isinstance(mlp, FeedForward):
        ups = ("gate_proj", "up_proj") if mlp.gated else ("up_proj",)
        return (
            *(_linear(f"mlp.{up}", "BTD", "DF", "BTF", mlp.bias) for up in ups),
            _linear("mlp.down_proj", "BTF", "FD", "BTD", mlp.bias),
        )
    ups = ("gate_proj", "up_proj") if mlp.expert.gated else ("up_proj",)
    indexed = {"gather": "E", "indices": "BTA"}
    experts = [Op(f"mlp.experts.{up}", (activation("BTD"), weight("EDF")), activation("BTAF"), **indexed) for up in ups]
    down = Op("mlp.experts.down_proj", (activation("BTAF"), weight("EFD")), activation("BTD"), **indexed)
    return (_linear("mlp.router", "BTD", "DE", "BTE", False), *experts, down)


@lru_cache(maxsize=64)
def norm_op(norm: Norm, name: str) -> Op:
    """RMSNorm owns a weight, LayerNorm a weight and a bias. Nothing is summed over a matrix: 0 FLOPs."""
    owned = (weight("D"),) * (2 if norm.kind == "layernorm" else 1)
    return Op(name, (activation("BTD"), *owned), activation("BTD"))


def attention_dims(attention: Attention) -> dict[str, int]:
    heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    dims = {"N": heads, "K": kv_heads, "G": heads // kv_heads, "H": attention.head_dim}
    return dims | ({"W": attention.sliding_window} if attention.sliding_window else {})


def feed_forward_dims(mlp: FeedForward | MixtureOfExperts) -> dict[str, int]:
    if isinstance(mlp, FeedForward):
        return {"F": mlp.intermediate_size}
    return {"F": mlp.expert.intermediate_size, "E": mlp.num_local_experts, "A": mlp.num_experts_per_tok}


def block_groups(block: Block, label: str, path: str, count: int, hidden_size: int, once: bool) -> list[Group]:
    """The sublayers of one kind of block, each with its norm."""
    groups = []

    def add(ops: tuple[Op, ...], dims: dict[str, int], once: bool) -> None:
        groups.append(Group(path, count, {"D": hidden_size} | dims, ops, once, label))

    for name, attention in (("self_attn", block.self_attn), ("cross_attn", block.cross_attn)):
        if attention:
            queries, keys_values = attention_ops(attention, name)
            norm, dims = norm_op(block.norm, f"{name}_norm"), attention_dims(attention)
            if name == "self_attn":
                add((norm, queries[0], *keys_values, *queries[1:]), dims, once)
            else:
                add((norm, *queries), dims, once)
                add(keys_values, dims, True)
    add((norm_op(block.norm, "mlp_norm"), *feed_forward_ops(block.mlp)), feed_forward_dims(block.mlp), once)
    return groups


def _lookup(role: str) -> Op:
    return Op("embed_tokens", (Tensor(role, "VD"),), activation("BTD"), gather="V", indices="BT")


def _head(role: str) -> Op:
    return Op("lm_head", (activation("BRD"), Tensor(role, "DV")), activation("BRV"))


# By the role of the matrix; it is tied where another op owns it.
LOOKUPS = {role: _lookup(role) for role in ("weight", "tied")}
HEADS = {role: _head(role) for role in ("weight", "tied")}
POSITIONS = Op("embed_positions", (weight("MD"),), activation("BTD"), gather="M", indices="T")


def kinds(layers: tuple[Block, ...]) -> dict[Block, int]:
    """How many layers there are of each kind, in the order of the first of each."""
    distinct = {id(block): block for block in layers}  # mostly one object: hashing a Block costs, comparing ids not
    if len(distinct) == 1:
        return {layers[0]: len(layers)}
    return Counter(layers)


def stack_groups(config: ModelConfig, name: str, stack: Stack) -> list[Group]:
    """One stack: embedding, positions, blocks grouped by kind, final norm."""
    prefix = f"{name}." if config.encoder else ""
    dims = {"D": config.hidden_size, "V": config.vocab_size, "M": config.max_position_embeddings}
    once = name == "encoder"
    shared = bool(config.encoder) and config.share_embeddings
    lookup = LOOKUPS["tied" if shared and name == "decoder" else "weight"]  # tied: the encoder's group owns it
    groups = [Group("" if shared else prefix, 1, dims, (lookup,), once)]
    if config.position_embedding == "learned":
        groups.append(Group(prefix, 1, dims, (POSITIONS,), once))
    found = kinds(stack.layers)
    for number, (block, count) in enumerate(found.items(), start=1):
        label = f"{name} block" if config.encoder else "block"
        label += f" {number}" if len(found) > 1 else ""
        groups += block_groups(block, label, f"{prefix}layers.*.", count, config.hidden_size, once)
    if stack.final_norm:
        groups.append(Group(prefix, 1, dims, (norm_op(stack.final_norm, "norm"),), once))
    return groups


@once_a_config
def groups(config: ModelConfig) -> tuple[Group, ...]:
    """Every op of the model, grouped by the layers that repeat it."""
    found = [g for name, stack in config.stacks.items() for g in stack_groups(config, name, stack)]
    head = HEADS["tied" if config.tie_word_embeddings else "weight"]
    return (*found, Group("", 1, {"D": config.hidden_size, "V": config.vocab_size}, (head,)))
