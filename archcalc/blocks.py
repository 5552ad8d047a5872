"""From a `ModelConfig` to its op list: the contraction of every matrix, in the order in which they run.

Written by hand against the architecture, not generated from the PyTorch models: the two meet in the
contract tests, which demand equal parameter names, shapes, FLOPs and cache bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from archcalc.config import Block, ModelConfig, Stack, once_a_config
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.attention import cross_ops, key_value_ops
from archcalc.parts.embedding import CONTACTS, Head
from archcalc.parts.norm import norm_op


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


def _normed(block: Block, name: str, ops: tuple[Op, ...], first: bool) -> tuple[Op, ...]:
    """A sublayer between its norms, and the weights of its residual streams. `first`: no sublayer runs before it."""
    before = (norm_op(block.norm, f"{name}_norm"),)
    after = (norm_op(block.norm, f"{name}_post_norm"),)
    if block.parallel == "shared" and not first:
        before = ()
    placed = {
        "pre": (*before, *ops),
        "post": (*before, *ops),  # a post-norm is the sublayer's only norm, so it is called the same
        "inner": (*ops, *after),
        "sandwich": (*before, *ops, *after),
        "none": ops,
    }[block.norm_placement]
    hyper = block.residual.hyper
    return (*hyper.ops(f"{name}_hyper"), *placed) if hyper else placed


def _tied(op: Op) -> Op:
    """The op with the weights of another one."""
    return replace(op, inputs=tuple(Tensor("tied" if t.role == "weight" else t.role, t.axes) for t in op.inputs))


def block_groups(block: Block, label: str, path: str, count: int, hidden_size: int, once: bool) -> list[Group]:
    """The sublayers of one kind of block, each with its norms."""
    groups: list[Group] = []
    extra = {"D": hidden_size} | (block.residual.dims if block.residual.hyper else {})

    def add(ops: tuple[Op, ...], dims: dict[str, int], once: bool) -> None:
        ops = tuple(map(_tied, ops)) if block.repeated else ops
        groups.append(Group(path, count, extra | dims, ops, once, label))

    if own := block.residual.ops():
        add(own, block.residual.dims, once)
    if mixer := block.self_attn:
        name = mixer.module
        add(_normed(block, name, mixer.ops(name), True), mixer.dims, once)
    if cross := block.cross_attn:
        add(_normed(block, "cross_attn", cross_ops(cross, "cross_attn"), False), cross.dims, once)
        add(key_value_ops(cross, "cross_attn"), cross.dims, True)
    if mlp := block.mlp:
        add(_normed(block, "mlp", mlp.ops("mlp"), not block.self_attn), mlp.dims, once)
    return groups


def _lookup(role: str, width: str) -> Op:
    return Op("embed_tokens", (Tensor(role, f"V{width}"),), activation(f"BT{width}"), gather="V", indices="BT")


def _head(role: str, width: str, bias: str) -> Op:
    owned = (Tensor(role, f"{width}V"),) + ((Tensor(bias, "V"),) if bias else ())
    return Op("lm_head", (activation(f"BR{width}"), *owned), activation("BRV"))


# By the role of the matrix (tied where another op owns it), the width of the embedding and the role of the bias.
LOOKUPS = {(role, width): _lookup(role, width) for role in ("weight", "tied") for width in "Dd"}
HEADS = {(*found, bias): _head(*found, bias) for found in LOOKUPS for bias in ("", "weight", "buffer")}
POSITIONS = {w: Op("embed_positions", (weight(f"M{w}"),), activation(f"BT{w}"), "M", "T") for w in "Dd"}
TYPES = {w: Op("embed_types", (weight(f"t{w}"),), activation(f"BT{w}"), "t", "BT") for w in "Dd"}


def kinds(layers: tuple[Block, ...]) -> dict[Block, int]:
    """How many layers there are of each kind, in the order of the first of each."""
    counts: dict[int, int] = {}
    for block in layers:  # mostly few objects: hashing a Block costs, comparing ids does not
        counts[id(block)] = counts.get(id(block), 0) + 1
    distinct = {id(block): block for block in layers}
    if len(distinct) == 1:
        return {layers[0]: len(layers)}
    found: dict[Block, int] = {}
    for key, block in distinct.items():
        found[block] = found.get(block, 0) + counts[key]
    return found


def _inputs(config: ModelConfig, name: str, prefix: str, dims: dict[str, int], once: bool) -> list[Group]:
    """What comes before the first block of a stack: tokens or frames, positions, types, a norm."""
    extra, found, project = config.embedding, [], ()
    both = bool(config.encoder and config.decoder)
    if name == "encoder" and config.frontend:
        width = {"e": config.hidden_size}
        found.append(Group(prefix, 1, dims | width | config.frontend.dims, config.frontend.ops(), once))
    else:
        shared = both and config.share_embeddings and not config.frontend
        role = "tied" if shared and name == "decoder" else "weight"  # tied: the encoder's group owns it
        width = "d" if extra.embedding_size else "D"
        found.append(Group("" if shared else prefix, 1, dims, (LOOKUPS[role, width],), once))
        if extra.embedding_size:
            project = (linear("embed_projection", "BTd", "dD", "BTD", extra.projection_bias),)
    width = "d" if extra.narrow else "D"
    rest = (POSITIONS[width],) if config.position_embedding == "learned" or extra.stored_sinusoids else ()
    rest += (TYPES[width],) if extra.type_vocab_size else ()
    rest += (norm_op(extra.norm, "embed_norm", f"BT{width}", width),) if extra.norm else ()
    rest = (*rest, *project) if extra.narrow else (*project, *rest)
    return [*found, Group(prefix, 1, dims, rest, once)] if rest else found


def _dims(config: ModelConfig, name: str) -> dict[str, int]:
    extra = config.embedding
    positions = config.max_source_positions if name == "encoder" else None
    positions = (positions or config.max_position_embeddings) + extra.position_offset
    found = {"D": config.hidden_size, "V": config.vocab_size, "M": positions}
    found |= {"d": extra.embedding_size} if extra.embedding_size else {}
    return found | ({"t": extra.type_vocab_size} if extra.type_vocab_size else {})


def stack_groups(config: ModelConfig, name: str, stack: Stack) -> list[Group]:
    """One stack: what feeds it, blocks grouped by kind, final norm."""
    both = bool(config.encoder and config.decoder)
    prefix, dims, once = f"{name}." if both else "", _dims(config, name), both and name == "encoder"
    groups = _inputs(config, name, prefix, dims, once)
    found = kinds(stack.layers)
    for number, (block, count) in enumerate(found.items(), start=1):
        label = f"{name} block" if both else "block"
        label += f" {number}" if len(found) > 1 else ""
        groups += block_groups(block, label, f"{prefix}layers.*.", count, config.hidden_size, once)
    if hyper := stack.layers[-1].residual.hyper:
        groups.append(Group(prefix, 1, dims | hyper.dims, hyper.head_ops("hyper_head"), once))
    if per_layer := stack.layers[-1].residual.per_layer:
        groups.append(Group(prefix, 1, per_layer.dims, per_layer.once_ops(), once))
    if stack.final_norm:
        groups.append(Group(prefix, 1, dims, (norm_op(stack.final_norm, "norm"),), once))
    return groups


def _output(config: ModelConfig) -> list[Group]:
    """What is made of the last hidden states."""
    heads = [head for head in (config.head, config.head.beside) if head]
    dims = {"D": config.hidden_size, "V": config.vocab_size, "e": config.hidden_size}
    dims |= {"d": config.embedding.embedding_size} if config.embedding.embedding_size else {}
    dims |= {"O": max(head.labels for head in heads)} if any(head.labels for head in heads) else {}
    found = [op for head in heads for op in _head_ops(config, head)]
    if config.head.contacts:
        layers = list(config.stacks.values())[-1].layers
        dims |= {"μ": len(layers) * layers[0].self_attn.num_attention_heads, "o": 1}
        found.append(CONTACTS)
    return [Group("", 1, dims, tuple(found))] if found else []


def _head_ops(config: ModelConfig, head: Head) -> tuple[Op, ...]:
    width, found = "d" if config.embedding.embedding_size else "D", ()
    if head.kind == "lm" and width == "d":
        found = (linear("head_projection", "BRD", "Dd", "BRd", config.embedding.projection_bias),)
    found += head.ops(width)
    if head.has_logits:
        role, bias = "tied" if config.tie_word_embeddings else "weight", "weight" if head.bias else ""
        found += (HEADS[role, width, "buffer" if head.buffer_bias else bias],)
    return found


@once_a_config
def groups(config: ModelConfig) -> tuple[Group, ...]:
    """Every op of the model, grouped by the layers that repeat it."""
    found = [g for name, stack in config.stacks.items() for g in stack_groups(config, name, stack)]
    return (*found, *_output(config))
