"""A reference model's parts as ONNX functions: what feeds the blocks, each kind of block once, the head.

So the file reads like the architecture, tracing time does not grow with depth, and no weight is touched here. A
function's inputs are named after what they are: `x`, `positions`, `mask`, `past.0`, ...; `export.graph` connects them
by these names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from archcalc.config import Attention, Block, LatentAttention, MixtureOfExperts, ModelConfig
from export.onnx_kernels import OnnxKernels, experts
from export.tracing import BATCH, POSITIONS, SOURCE, TOKENS, Function, trace_function
from models.builder import Model, skeleton
from models.cache import Past, shapes
from models.positions import Context, alibi, causal_mask, distance_buckets, padding_mask, rotary_tables
from models.stack import Stack

ROWS, GRID = {0: BATCH}, {0: BATCH, 1: TOKENS}
BATCH_SIZE, TOKEN_COUNT, SOURCE_COUNT = 2, 3, 5  # of the examples that a trace is made with


def kinds(blocks: tuple[Block, ...]) -> list[Block]:
    """The distinct blocks, in the order of their first layer."""
    return list(dict.fromkeys(blocks))


def seen(block: Block) -> tuple | None:
    """What its mask depends on: (window, chunk); None in a block without a mask."""
    mixer = block.self_attn
    if not isinstance(mixer, Attention | LatentAttention):
        return None
    return mixer.sliding_window, getattr(mixer, "attention_chunk_size", None)


def bias_source(blocks: tuple[Block, ...], index: int) -> tuple | None:
    """What is added to the scores of layer `index`: ("alibi", heads, scale) or ("table", layer that owns it); or None.

    A layer without a table of its own is served by that of the first layer (T5).
    """
    mixer = blocks[index].self_attn
    if getattr(mixer, "alibi", False):
        return "alibi", mixer.num_attention_heads, mixer.alibi_scale
    buckets = getattr(mixer, "relative_buckets", None)
    return None if buckets is None else ("table", index if buckets else 0)


def rotary_key(block: Block) -> tuple | None:
    """(rotary, width): what the block's cos and sin tables depend on; None where it has none."""
    mixer = block.self_attn
    rotary = getattr(mixer, "rotary", None)
    return (rotary, getattr(mixer, "head_dim", None) or mixer.qk_rope_head_dim) if rotary else None


def first_attention(blocks: tuple[Block, ...]) -> int | None:
    """The layer whose values those with a value residual use."""
    return next((index for index, block in enumerate(blocks) if isinstance(block.self_attn, Attention)), None)


def distinct(found) -> list:
    """In order, each once, without None."""
    return [one for one in dict.fromkeys(found) if one is not None]


@dataclass(frozen=True)
class Functions:
    """The traced parts of a stack at one number format (and capacity); a block for each distinct kind.

    Args:
        head: None in an encoder that feeds a decoder and has no final norm.
        cross: what makes the keys and values of each distinct cross-attention, in an encoder that feeds a decoder.
        stack: `decoder` or `encoder`.
        experts: one expert of each distinct mixture. composed: functions that call others; they own no weights.
    """

    stem: Function
    blocks: dict[Block, Function]
    head: Function | None
    cross: dict[Attention, Function] = field(default_factory=dict)
    stack: str = "decoder"
    experts: dict[MixtureOfExperts, Function] = field(default_factory=dict)
    composed: tuple[Function, ...] = ()

    @property
    def every(self) -> tuple[Function, ...]:
        ends = (self.head,) if self.head else ()
        return self.stem, *self.blocks.values(), *ends, *self.cross.values(), *self.experts.values(), *self.composed

    def changed(self, change: Callable[[Function], Function]) -> Functions:
        """The same parts with each function replaced by what `change` makes of it."""
        blocks = {kind: change(function) for kind, function in self.blocks.items()}
        cross = {kind: change(function) for kind, function in self.cross.items()}
        experts = {kind: change(function) for kind, function in self.experts.items()}
        ends = {"stem": change(self.stem), "head": self.head and change(self.head)}
        return replace(self, blocks=blocks, cross=cross, experts=experts, **ends)


class Tracer:
    """Traces the parts of a model's decoder.

    Args:
        dtype: of weights, activations and cache.
        capacity: tokens a sequence that the cache holds; None in a stack that keeps nothing.
        kernels: what the five kernels of `models.kernels` become.
    """

    part = "decoder"

    def __init__(self, config: ModelConfig, dtype: torch.dtype, capacity: int | None, kernels: type = OnnxKernels):
        self.config, self.dtype, self.capacity, self.kernels = config, dtype, capacity, kernels
        self.model: Model = skeleton(config, kernels=kernels, dtype=dtype)
        self.stack: Stack = getattr(self.model, self.part, self.model)
        self.blocks = config.stacks[self.part].layers
        self._key = type(self), config, dtype, capacity, kernels

    def __eq__(self, other) -> bool:
        return isinstance(other, Tracer) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def new(self, *shape: int, dtype=None) -> torch.Tensor:
        """An example: memory that nobody reads, so that it takes none."""
        return torch.empty(shape, dtype=dtype or self.dtype)

    def ids(self) -> torch.Tensor:
        return self.new(BATCH_SIZE, TOKEN_COUNT, dtype=torch.int64)

    def root_weights(self) -> list[str]:
        """Names of all weights that do not belong to a block, and the tables that blocks share."""
        tables = (".self_attn.relative_attention_bias.weight",)
        every = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return [n for n in every if "layers." not in n or n.endswith(tables)]

    def bias(self, source: tuple, ahead_BTC: torch.Tensor) -> torch.Tensor:
        if source[0] == "alibi":
            return (source[2] * alibi(ahead_BTC, source[1])).to(self.dtype)
        layer = self.stack.layers[source[1]]
        mixer = layer.config.self_attn
        found = distance_buckets(ahead_BTC, mixer.relative_buckets, mixer.relative_max_distance, mixer.causal)
        return layer.self_attn.relative_attention_bias(found).permute(0, 3, 1, 2)

    def stem(self) -> Function:
        """Token vectors `x`, and what all blocks see: `positions`, `present`, `mask.i`, `bias.i`.

        A cache's slot c of a row has position c - (write_indices - position_ids[0]): padding in front is below 0.
        """
        masks = distinct(map(seen, self.blocks))
        biases = distinct(bias_source(self.blocks, index) for index in range(len(self.blocks)))

        def run(input_ids_BT, position_ids_BT, write_indices_B, source_mask_BX=None):
            positions_BT = position_ids_BT.clamp(min=0)
            x_BTD = self._embedded(input_ids_BT, positions_BT)
            start_B = write_indices_B - position_ids_BT[:, 0]
            keys_BC = torch.arange(self.capacity)[None] - start_B[:, None]
            found = [causal_mask(position_ids_BT, keys_BC, *key, padded=True) for key in masks]
            ahead_BTC = keys_BC[:, None, :] - position_ids_BT[:, :, None]
            found += [self.bias(source, ahead_BTC) for source in biases]
            if source_mask_BX is not None:
                found.append(padding_mask(source_mask_BX, input_ids_BT.shape[1]))
            return x_BTD, positions_BT, position_ids_BT >= 0, *found

        outputs = ["x", "positions", "present"]
        outputs += [f"mask.{i}" for i in range(len(masks))] + [f"bias.{i}" for i in range(len(biases))]
        inputs = {
            "input_ids": (self.ids(), GRID),
            "position_ids": (self.ids(), GRID),
            "write_indices": (self.new(BATCH_SIZE, dtype=torch.int64), ROWS),
        }
        if self.config.encoder:
            outputs.append("cross_mask")
            inputs["source_mask"] = (self.new(BATCH_SIZE, SOURCE_COUNT, dtype=torch.bool), {0: BATCH, 1: SOURCE})
        return trace_function("Stem", self.model, run, inputs, outputs, self.root_weights())

    def _embedded(self, input_ids_BT, positions_BT) -> torch.Tensor:
        if self.stack is self.model:
            return self.model.stem(input_ids_BT, positions_BT)
        return self.model.stem(self.stack, input_ids_BT, positions_BT)

    def context(self, block: Block) -> dict[str, tuple[torch.Tensor, dict[int, str]]]:
        """Examples of what a block may read beside its input and its past."""
        found = {
            "positions": (self.ids(), GRID),
            "present": (self.new(BATCH_SIZE, TOKEN_COUNT, dtype=torch.bool), GRID),
            "write_indices": (self.new(BATCH_SIZE, dtype=torch.int64), ROWS),
        }
        keys = self.capacity or TOKEN_COUNT
        scores = {0: BATCH, 2: TOKENS} | ({} if self.capacity else {3: TOKENS})
        if seen(block):
            found["mask"] = (self.new(BATCH_SIZE, 1, TOKEN_COUNT, keys, dtype=torch.bool), scores)
        if bias_source(self.blocks, self.blocks.index(block)):
            heads = block.self_attn.num_attention_heads
            found["bias"] = (self.new(BATCH_SIZE, heads, TOKEN_COUNT, keys), scores)
        if key := rotary_key(block):
            width, axes = rotary_tables(*key, 1)[0].shape[1], {} if self.capacity else {0: TOKENS}
            found |= {part: (self.new(keys, width), axes) for part in ("cos", "sin")}
        if block.cross_attn:
            pair = shapes(block.cross_attn, BATCH_SIZE, SOURCE_COUNT)
            names = ("cross_key", "cross_value")
            found |= {n: (self.new(*shape), {0: BATCH, 2: SOURCE}) for n, shape in zip(names, pair, strict=True)}
            mask = self.new(BATCH_SIZE, 1, TOKEN_COUNT, SOURCE_COUNT, dtype=torch.bool)
            found["cross_mask"] = (mask, {0: BATCH, 2: TOKENS, 3: SOURCE})
        if block.residual.value_residual:
            mixer = self.blocks[first_attention(self.blocks)].self_attn
            width = mixer.v_head_dim or mixer.head_dim
            found["first_values"] = (self.new(BATCH_SIZE, TOKEN_COUNT, mixer.num_key_value_heads, width), GRID)
        if block.residual.skip:
            found["skip"] = (self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size), GRID)
        return found

    def layer(self, kind: Block) -> nn.Module:
        """The first layer of this kind."""
        return self.stack.layers[self.blocks.index(kind)]

    def first_expert(self, mixture: MixtureOfExperts) -> nn.Module:
        return next(layer.mlp.experts[0] for layer in self.stack.layers if layer.config.mlp == mixture)

    def block(self, kind: Block, name: str) -> Function:
        """One layer of this kind: (x, its past, context) to (y, its new past), and its values if others need them."""
        layer = self.layer(kind)
        gives = any(block.residual.value_residual for block in self.blocks)
        gives = gives and kind == self.blocks[first_attention(self.blocks)]
        kept = shapes(kind.self_attn, BATCH_SIZE, self.capacity) if self.capacity else ()
        past = [self.new(*shape) for shape in kept]
        context = self.context(kind)
        inputs = {"x": (self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size), GRID)}
        inputs |= {f"past.{i}": (tensor, ROWS) for i, tensor in enumerate(past)}

        def run(x_BTD, *rest):
            tensors, values = rest[: len(past)], dict(zip(context, rest[len(past) :], strict=True))
            kept = Past(tensors, values["write_indices"], kernels=self.kernels) if past else None
            first = [values["first_values"]] if "first_values" in values else []
            if layer.skip is not None:
                x_BTD = x_BTD + layer.skip.weight * values["skip"]
            y_BTD = layer(x_BTD, _context(values)._replace(first_values=first), kept)
            return y_BTD, *(kept.tensors if kept else ()), *(first if gives else ())

        outputs = ["y", *(f"present.{i}" for i in range(len(past))), *(["values"] if gives else ())]
        weights = [n for n in (*dict(layer.named_parameters()), *dict(layer.named_buffers())) if ".experts." not in n]
        if isinstance(kind.mlp, MixtureOfExperts):
            layer.mlp.routed = experts
        return trace_function(name, layer, run, inputs | context, outputs, weights)

    def expert(self, mixture: MixtureOfExperts, name: str) -> Function:
        """One expert of a mixture, over r of the t tokens of a pass: [r, D] to [r, D]."""
        module, x = self.first_expert(mixture), self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size)
        return trace_function(name, module, module.forward, {"x": (x, GRID)}, ["y"])  # as matrices, of any rank

    def head(self) -> Function:
        """Logits of the chosen positions only: [B, R, V]."""

        def run(x_BTD, logit_indices_BR):
            index_BRD = logit_indices_BR[..., None].expand(-1, -1, self.config.hidden_size)
            return self.model.head(x_BTD.gather(1, index_BRD))

        x = self.new(BATCH_SIZE, TOKEN_COUNT, self.config.hidden_size)
        chosen = self.new(BATCH_SIZE, 2, dtype=torch.int64)
        inputs = {"x": (x, GRID), "logit_indices": (chosen, {0: BATCH, 1: POSITIONS})}
        return trace_function("Head", self.model, run, inputs, ["logits"], self.root_weights())

    def functions(self) -> Functions:
        """All parts."""
        blocks = {kind: self.block(kind, f"Block{number}") for number, kind in enumerate(kinds(self.blocks))}
        mixtures = [mlp for mlp in distinct(block.mlp for block in self.blocks) if isinstance(mlp, MixtureOfExperts)]
        experts = {mixture: self.expert(mixture, f"Expert{number}") for number, mixture in enumerate(mixtures)}
        return Functions(self.stem(), blocks, self.head(), experts=experts)


@functools.lru_cache(maxsize=32)
def traced(tracer: Tracer) -> Functions:
    """All parts, kept: a trace takes a second, and builds in several precisions begin with the same ones."""
    return tracer.functions()


def _context(values: dict[str, torch.Tensor]) -> Context:
    """The `Context` of a block from a function's inputs."""
    names = {
        "positions": "position_ids_BT", "present": "present_BT", "mask": "mask_B1TS", "bias": "bias_BNTS",
        "cos": "cos_MP", "sin": "sin_MP", "cross_key": "cross_k_BKXH", "cross_value": "cross_v_BKXH",
        "cross_mask": "cross_mask_B1TX",
    }  # fmt: skip
    return Context(**{ours: values[name] for name, ours in names.items() if name in values})
