"""`--target onnxruntime`: rotary positions, cache and attention as ONNX Runtime's one operator, GroupQueryAttention.

It multiplies the tokens that are there instead of the whole cache, and turns, writes and attends without copies.
Its rules are narrower than the canonical graph's: sequences begin in slot 0, and only one may have a pass of several
tokens after its first. `export verify` holds it against PyTorch like every other graph.
The norm of a sum becomes one operator too.
Source: com.microsoft.GroupQueryAttention and SkipSimplifiedLayerNormalization, version 1, ONNX Runtime's contributed
operators.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from archcalc.config import Attention, Block, ModelConfig, Recurrent
from archcalc.errors import ConfigError
from export.files import ExportError
from export.onnx_from_torch import Functions
from export.tracing import Function, pruned, remade

CONTRIBUTED = "com.microsoft"
ATTENTION, SUMMED_NORM = "GroupQueryAttention", "SkipSimplifiedLayerNormalization"
ROTARY_STEP = 16  # it turns heads of multiples of this many channels; others are turned before
LENGTHS = ("seqlens_k", "total_sequence_length")


def check_fusible(config: ModelConfig) -> None:
    """Raise ExportError for a model with attention that the operator does not say."""
    for block in config.decoder.layers if config.decoder else ():
        if config.encoder or not _fits(block):
            raise ExportError(
                "target=onnxruntime: its fused attention is causal, of keys and values of one width, without sinks or "
                "a bias by distance; this model asks for more, give --target any"
            )


def fused(functions: Functions) -> Functions:
    """The same functions with fused attention, of a model that `check_fusible` lets pass."""
    blocks = {kind: _summed_norms(_fused_block(function, kind)) for kind, function in functions.blocks.items()}
    return replace(functions, stem=_with_lengths(functions.stem), blocks=blocks)


def check_in_order(position_ids: np.ndarray, write_indices: np.ndarray) -> None:
    """Raise ConfigError for a pass that the operator would compute otherwise than it is asked to."""
    if (position_ids[:, 0] != write_indices).any():
        raise ConfigError(
            "position_ids: with target=onnxruntime sequences begin in slot 0; pad prompts behind, or give --target any"
        )
    if min(position_ids.shape) > 1 and write_indices.any():
        raise ConfigError(
            f"batch={len(position_ids)}: with target=onnxruntime one sequence at a time may go on by several tokens; "
            "run them one by one, or give --target any"
        )


def _with_lengths(stem: Function) -> Function:
    """The stem with what the operator wants to know: each row's last slot [B], and the length of the longest row."""
    proto = onnx.FunctionProto()
    proto.CopyFrom(stem.proto)
    proto.node.extend(
        [
            helper.make_node("Shape", ["input_ids"], ["new_tokens"], start=1, end=2),
            helper.make_node("Add", ["write_indices", "new_tokens"], ["lengths"]),
            helper.make_node("Constant", [], ["one"], value_int=1),
            helper.make_node("Sub", ["lengths", "one"], ["last_slots"]),
            helper.make_node("Cast", ["last_slots"], [LENGTHS[0]], to=TensorProto.INT32),
            helper.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
            helper.make_node("Cast", ["longest"], [LENGTHS[1]], to=TensorProto.INT32),
        ]
    )
    proto.output.extend(LENGTHS)
    return Function(proto, stem.weights)


class _Nodes:
    """The nodes of a function by what they make and by what they read, and those that are added."""

    def __init__(self, proto: onnx.FunctionProto):
        self.makes = {output: node for node in proto.node for output in node.output}
        self.proto, self.added = proto, []

    def maker(self, tensor: str, kind: str) -> onnx.NodeProto | None:
        """The node of that kind that makes a tensor."""
        node = self.makes.get(tensor)
        return node if node is not None and node.op_type == kind else None

    def reader(self, tensor: str, kind: str) -> onnx.NodeProto | None:
        """The node of that kind that reads a tensor, if nothing else does."""
        found = [node for node in self.proto.node if tensor in node.input]
        return found[0] if len(found) == 1 and found[0].op_type == kind else None

    def add(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        self.added.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def flat(self, heads_BNTH: str) -> str:
        """The tensor [B, T, N·H] of heads [B, N, T, H]."""
        transposed = self.maker(heads_BNTH, "Transpose")
        if transposed is None:
            transposed_BTNH = self.add("Transpose", [heads_BNTH], f"{heads_BNTH}.tokens", perm=[0, 2, 1, 3])
        else:
            transposed_BTNH = transposed.input[0]
        if split := self.maker(transposed_BTNH, "Reshape"):
            return split.input[0]
        shape = self.add("Constant", [], f"{heads_BNTH}.flat_shape", value_ints=[0, 0, -1])
        return self.add("Reshape", [transposed_BTNH, shape], f"{heads_BNTH}.flat")


def _fused_block(function: Function, kind: Block) -> Function:
    proto = onnx.FunctionProto()
    proto.CopyFrom(function.proto)
    nodes = _Nodes(proto)
    attention = [node for node in proto.node if node.op_type == "Attention"]
    if not attention:
        return function  # another mixer, or none
    writes = [nodes.maker(tensor, "TensorScatter") for tensor in attention[0].input[1:3]]
    heads = [attention[0].input[0], *(write.input[1] for write in writes)]
    turns = [nodes.maker(tensor, "RotaryEmbedding") for tensor in heads[:2]]
    turned = all(turns) and kind.self_attn.head_dim % ROTARY_STEP == 0
    tables = list(turns[0].input[1:3]) if turned else ["", ""]
    if turned:
        heads[:2] = [turn.input[0] for turn in turns]
    result = f"{attention[0].output[0]}.flat"
    operator = helper.make_node(
        ATTENTION,
        [*map(nodes.flat, heads), "past.0", "past.1", *LENGTHS, *tables],
        [result, *(write.output[0] for write in writes)],
        domain=CONTRIBUTED,
        do_rotary=int(turned),
        **_attributes(kind.self_attn),
    )
    transposed = nodes.reader(attention[0].output[0], "Transpose")
    joined = nodes.reader(transposed.output[0], "Reshape")
    if joined is None:  # something is done to the heads before they are joined
        shape = nodes.add("Constant", [], "heads_shape", value_ints=[0, 0, kind.self_attn.num_attention_heads, -1])
        last = helper.make_node("Reshape", [result, shape], [transposed.output[0]])
    else:
        last = helper.make_node("Identity", [result], [joined.output[0]])
    return _replaced(function, proto, [attention[0], *writes, transposed, joined], [*nodes.added, operator, last])


def _summed_norms(function: Function) -> Function:
    """The function with the norm of a sum of two activations as one operator, which gives the sum too."""
    proto, operators = function.proto, {}
    nodes = _Nodes(proto)
    for norm in (node for node in proto.node if node.op_type == "RMSNormalization"):
        added = nodes.maker(norm.input[0], "Add")
        if added is None or set(added.input).intersection(function.weights) or norm.input[1] not in function.weights:
            continue
        operator = helper.make_node(
            SUMMED_NORM,
            [*added.input, norm.input[1]],
            [norm.output[0], "", "", added.output[0]],
            domain=CONTRIBUTED,
            epsilon=next(attribute.f for attribute in norm.attribute if attribute.name == "epsilon"),
        )
        operators |= {id(added): [operator], id(norm): []}
    kept = [one for node in proto.node for one in operators.get(id(node), [node])]
    return remade(function, kept, domain=CONTRIBUTED)


def _fits(kind: Block) -> bool:
    """Whether the operator says what this block's attention does: a causal mask, with a window or without one."""
    mixer = kind.self_attn
    if mixer is None or isinstance(mixer, Recurrent):
        return True
    if not isinstance(mixer, Attention):
        return False
    asks = mixer.alibi or mixer.relative_buckets is not None or mixer.attention_chunk_size or mixer.sinks
    return not asks and mixer.v_head_dim in (None, mixer.head_dim)


def _attributes(mixer: Attention) -> dict:
    chosen = {"scale": mixer.scale, "softcap": mixer.logit_softcap, "local_window_size": mixer.sliding_window}
    given = {name: value for name, value in chosen.items() if value is not None}
    return {"num_heads": mixer.num_attention_heads, "kv_num_heads": mixer.num_key_value_heads} | given


def _replaced(function: Function, proto: onnx.FunctionProto, old: list, new: list) -> Function:
    """The function with `new` nodes, in order, where the attention was; what nothing reads any more is left out."""
    at = next(index for index, node in enumerate(proto.node) if node is old[0])
    gone = {output for node in old if node is not None for output in node.output}
    kept = [(index, node) for index, node in enumerate(proto.node) if not gone.intersection(node.output)]
    nodes = [node for index, node in kept if index < at] + new + [node for index, node in kept if index > at]
    inputs = [*(i for i in proto.input if i not in function.weights), *LENGTHS, *function.weights]
    return pruned(remade(function, nodes, inputs=inputs, domain=CONTRIBUTED), list(proto.output))
