"""What a training step takes: FLOPs forward and backward, and bytes of weights, gradients, optimizer, activations.

FLOPs. The backward of a product is two products of its size, one for each operand's gradient, so a step is three
forward passes; recomputing all activations runs a fourth, recomputing attention's core its products once more.

Activations. Stored are, in `ACTIVATION_BYTES` each: the input of every product (one tensor that several products read
is stored once), the input of every norm, the inputs of an activation function and of a gate, and the probabilities of
attention, for every (query, key) pair. With dropout also a mask of a byte an element and what it leaves. Logits are
stored once more in fp32. A token's input to its experts is stored once, not once an expert; the states inside a
recurrent mixer's scan are not. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4: 34·s·b·h + 5·a·s²·b bytes
a layer of a GPT with dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from archcalc.blocks import Group
from archcalc.config import ModelConfig, expanded
from archcalc.cost import Pass, bound, check_request, costs, parameters
from archcalc.counts import parameter_counts
from archcalc.errors import one_of
from archcalc.ops import Op, size

ACTIVATION_BYTES, LOGIT_BYTES, MASK_BYTES = 2, 4, 1
RECOMPUTE = ("none", "selective", "full")


class Policy(NamedTuple):
    """Bytes a parameter: of the weight that runs, its gradient, and an fp32 copy that the optimizer updates."""

    weight: int
    gradient: int
    master: int


# Mixed precision: arXiv:1710.03740; 16 bytes a parameter with adamw: arXiv:1910.02054, section 3.1.
POLICIES = {
    "fp32": Policy(4, 4, 0),
    "mixed": Policy(2, 2, 4),
    "mixed-fp32-grad": Policy(2, 4, 4),
    "bf16": Policy(2, 2, 0),
}
# Bytes a parameter of the optimizer's moments: adam8bit without the scales of its blocks (arXiv:2110.02861).
OPTIMIZERS = {"adamw": 8, "adam8bit": 2, "sgd-momentum": 4, "sgd": 0}


@dataclass(frozen=True)
class Step:
    """One optimizer step without accumulation.

    Args:
        batch: sequences. tokens: of each; source: of each in the encoder of an encoder-decoder (default `tokens`).
        recompute: `none` stores what the backward needs, `selective` all but attention's scores and probabilities
            (what a fused kernel does), `full` only the input of each layer.
        dropout: after attention's probabilities, each sublayer and the embedding.
    """

    batch: int = 1
    tokens: int = 1024
    source: int | None = None
    policy: str = "mixed"
    optimizer: str = "adamw"
    recompute: str = "selective"
    dropout: bool = False

    def __post_init__(self):
        one_of("policy", self.policy, POLICIES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("recompute", self.recompute, RECOMPUTE)


def forward(config: ModelConfig, step: Step) -> list[Pass]:
    """The passes of one forward over whole sequences, with logits of every position."""
    B, T, X = step.batch, step.tokens, step.source or step.tokens
    once, rest = bound(expanded(config))
    found = [Pass("encoder", {"B": B, "T": X, "S": X, "R": X}, once)] if once.lines else []
    return [*found, Pass("model", {"B": B, "T": T, "S": T, "X": X, "R": T}, rest)]


def _is_core(op: Op) -> bool:
    """Whether an op is one of attention's products of queries, keys and values."""
    return op.mask is not None or op.name.endswith((".scores", ".context"))


def flops(config: ModelConfig, step: Step) -> dict[str, int]:
    """FLOPs of a step: `products` of weights (and of states), `attention` by what it counts, and the sums.

    `causal` counts the pairs that the mask lets through; `dense` every pair; `halved` half of those that a causal mask
    is on, as many trainers count.
    """
    linear, core = 0, {"causal": 0, "dense": 0, "halved": 0}
    for run in forward(config, step):
        for line, seen, every in zip(run.bound.lines, costs(run), costs(run, dense=True), strict=True):
            if _is_core(line.op):
                core["causal"] += line.count * seen.flops
                core["dense"] += line.count * every.flops
                core["halved"] += line.count * every.flops // (2 if line.op.mask and line.op.mask.causal else 1)
            else:
                linear += line.count * seen.flops
    times = {"none": (3, 3), "selective": (3, 4), "full": (4, 4)}[step.recompute]
    attention = {name: times[1] * value for name, value in core.items()}
    found = {"products": times[0] * linear} | {f"attention_{name}": value for name, value in attention.items()}
    return found | {name: times[0] * linear + value for name, value in attention.items()}


def rules_of_thumb(config: ModelConfig, step: Step) -> dict[str, dict[str, int]]:
    """6·N·tokens for each N that people put into it, active ones where a token does not use all; no recomputation."""
    tokens, chosen = step.batch * step.tokens, {}
    for name, count in parameter_counts(config).items():
        if name != "all and buffers":
            chosen[name] = count["total"]
            chosen |= {f"{name}, active": count["active"]} if count["active"] != count["total"] else {}
    return {name: {"n": n, "flops": 6 * n * tokens} for name, n in chosen.items()}


def model_state(config: ModelConfig, step: Step) -> dict[str, int]:
    """Bytes of weights, gradients, the optimizer's fp32 copy and its moments."""
    count, policy = parameters(config), POLICIES[step.policy]
    moments = OPTIMIZERS[step.optimizer]
    if step.policy == "bf16" and step.optimizer != "adam8bit":
        moments //= 2  # moments in the format of the weights
    return {
        "weights": policy.weight * count,
        "gradients": policy.gradient * count,
        "master_weights": policy.master * count,
        "optimizer": moments * count,
    }


def stored_tensors(group: Group) -> tuple[list[str], list[str]]:
    """Tensors, as axes, that the backward of a sublayer with its norms needs: (all but scores, scores).

    A tensor is known by its axes and the op that wrote those last: the one input of three projections counts once, the
    input and the output of a norm twice. Queries, keys and values may have the same axes and are never the same.
    """
    inputs, scores, writer = {}, {}, {}
    for op in group.ops:
        here: list[str] = []
        own = op.name if _is_core(op) or op.name.endswith(".read") else ""
        for role, axes in op.inputs:
            if role in ("weight", "tied", "buffer", "state") or not set(axes) & set("TSXR"):
                continue
            found = scores if "T" in axes and ("S" in axes or "X" in axes) else inputs
            found[axes, writer.get(axes), own, here.count(axes)] = axes
            here.append(axes)
        inputs |= {(op.name, number): op.output.axes for number in range(_nonlinear(op))}
        writer[op.output.axes] = op.name
    return list(inputs.values()), list(scores.values())


def _nonlinear(op: Op) -> int:
    """How many tensors like its output an activation function or a gate behind it needs."""
    module, _, last = op.name.rpartition(".")
    if last not in ("gate_proj", "up_proj", "z"):
        return 0
    return 2 if last == "gate_proj" and not module.startswith("mlp") else 1  # a mixer's gate also needs what it scales


def _makes_cross_keys(group: Group) -> bool:
    """Whether it makes the keys and values of the source: its input is one tensor for all layers."""
    return group.once and all(op.name.startswith("cross_attn.") for op in group.ops)


def _group_bytes(group: Group, run: Pass, step: Step) -> int:
    dims = group.dims | run.dims
    inputs, scores = stored_tensors(group)
    stored = ACTIVATION_BYTES * sum(size(axes, dims) for axes in inputs)
    if step.recompute == "none":
        each = 2 * ACTIVATION_BYTES + MASK_BYTES if step.dropout else ACTIVATION_BYTES
        stored += each * sum(size(axes, dims) for axes in scores)
    sublayer = group.block and any(op.output.axes == "BTD" and op.name.endswith("_proj") for op in group.ops)
    looks_up = any(op.gather == "V" for op in group.ops)
    if step.dropout and (sublayer or looks_up):
        stored += MASK_BYTES * size("BTD", dims)
    return stored


def activations(config: ModelConfig, step: Step) -> dict[str, int]:
    """Bytes of activations that a step holds for its backward: of the `blocks`, of what is around them (`rest`) and
    of the fp32 `logits`."""
    blocks, rest, logits = 0, 0, 0
    for run in forward(config, step):
        for group in {id(line.group): line.group for line in run.bound.lines}.values():
            stored = _group_bytes(group, run, step)
            if group.block and step.recompute != "full":
                blocks += (1 if _makes_cross_keys(group) else group.count) * stored
            elif not group.block:
                rest += stored
                heads = sum(op.name == "lm_head" for op in group.ops)
                logits += heads * LOGIT_BYTES * size("BRV", group.dims | run.dims)
    if step.recompute == "full":
        for name, stack in config.stacks.items():
            tokens = step.source or step.tokens if name == "encoder" and config.decoder else step.tokens
            blocks += len(stack.layers) * ACTIVATION_BYTES * step.batch * tokens * config.hidden_size
    return {"blocks": blocks, "rest": rest, "logits": logits}


def training(config: ModelConfig, step: Step = Step()) -> dict[str, Any]:
    """All numbers of a training step, as plain data.

    Raises:
        ConfigError: a size that is no request.
    """
    check_request(config, step.batch, step.source or step.tokens, step.tokens)
    held, kept = model_state(config, step), activations(config, step)
    return {
        "model": config.name,
        "step": {
            "batch": step.batch,
            "tokens": step.tokens,
            **({"source": step.source or step.tokens} if len(config.stacks) > 1 else {}),
            "policy": step.policy,
            "optimizer": step.optimizer,
            "recompute": step.recompute,
            "dropout": step.dropout,
        },
        "flops": flops(config, step),
        "six_n_d": rules_of_thumb(config, step),
        "bytes": held | {f"activations of {name}": value for name, value in kept.items()},
        "total_bytes": sum(held.values()) + sum(kept.values()),
        "conventions": conventions(step),
    }


def conventions(step: Step) -> dict[str, str]:
    """What each number of it counts."""
    again = {"none": "", "selective": ", and attention's products once more", "full": ", and a second forward"}
    return {
        "flops": f"matrix products, 2 a multiply-add: forward and twice that backward{again[step.recompute]}",
        "attention": "causal: pairs that the mask lets through; dense: every pair; halved: half of dense",
        "6ND": "6 x parameters x tokens, without attention's products; exact for the matrices of blocks and head",
        "bytes": "no sharding over devices, no gradient accumulation, no workspace of kernels",
        "optimizer": "adamw: two fp32 moments; adam8bit: two of 8 bits, without scales; bf16 policy: moments in bf16",
        "activations": "inputs of products, norms, activation functions and gates at 2 bytes; probabilities "
        "of attention where nothing is recomputed; dropout masks at 1 byte; logits once more in fp32",
    }
