"""An op is an einsum over named axes with a role for each operand. One rule gives its cost.

    parameters   product of each weight's axes
    FLOPs        2 x product of the distinct axis names (a multiply-add is 2 FLOPs); 0 if nothing is summed
    traffic      product of each operand's axes, by role
    gather axis  indexed, not multiplied: vocabulary in an embedding, expert in an MoE

Distinct by name, never by size: when T equals S, or D equals N·H, deduplicating by size loses a factor.
A cost is a sum of terms, each a factor that the model fixes times a monomial that a request sets. So a
model is bound once, and a request, a sweep of a million requests or a formula only evaluates monomials.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from archcalc.dims import Algebra, Dims, Mask, Size, pairs, span

RUNTIME = "BTSXR"  # axes that a request sets; the others are fixed by the model


class Tensor(NamedTuple):
    """An operand: its role and its axes.

    Roles: `weight`; `tied`, a weight that another op owns; `buffer`, stored with the weights but not a parameter;
    `activation`; `cache`, keys or values; `shared`, those that an earlier layer holds; `state`, what a recurrent
    layer reads and writes back, of one size at any context; `chip`, what a fused kernel never writes to memory.
    """

    role: str
    axes: str


def weight(axes: str) -> Tensor:
    return Tensor("weight", axes)


def activation(axes: str) -> Tensor:
    return Tensor("activation", axes)


def cache(axes: str) -> Tensor:
    return Tensor("cache", axes)


class Cost(NamedTuple):
    """What one op takes. FLOPs are a count; all else are elements: multiply by a dtype's bytes."""

    params: Size = 0
    flops: Size = 0
    weights_read: Size = 0
    activations: Size = 0  # read and written
    cache_read: Size = 0
    cache_written: Size = 0


class Monomial(NamedTuple):
    """What a request sets in a term.

    The product of the runtime `axes`; with a `mask`, times its (query, key) `pairs` or its `span` of keys;
    as `rows`, the distinct rows that `per_index` x that many indices can touch of `limit` rows.
    """

    axes: str
    kind: str = "product"
    mask: Mask | None = None
    limit: Size = 0
    per_index: Size = 1

    def value(self, dims: Dims, dense: bool, algebra: Algebra) -> Size:
        axes, kind, mask, limit, per_index = self
        count = size(axes, dims)
        if kind == "product":
            return count
        if kind == "rows":
            return algebra.minimum(limit, per_index * count)
        mask = mask.dense if dense else mask
        return count * (pairs if kind == "pairs" else span)(dims, mask, algebra)


ONCE = Monomial("")  # the request sets nothing: a weight's elements


class Term(NamedTuple):
    """`scale` x `fixed` (products of axes that the model sets, joined by `+`: see `Sizes`) x `monomial`.

    `column` is the index of the field of `Cost` that it adds to.
    """

    column: int
    scale: int
    fixed: str
    monomial: Monomial


@dataclass(frozen=True)
class Op:
    """One einsum.

    Args:
        name: the module that computes it, as in the reference model's `state_dict`: `self_attn.q_proj`.
        gather: the axis of the weight that is indexed, and `indices`, the axes of what indexes it.
        mask: for the two products of self-attention, whose axes T and S are masked pairs.
    """

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    gather: str = ""
    indices: str = ""
    mask: Mask | None = None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights that this op owns, the matrix first and then its bias."""
        return tuple(t for t in self.inputs if t.role == "weight")

    @cached_property
    def multiplied(self) -> str:
        """The distinct axes that FLOPs multiply; none if the op sums over nothing but a gather."""
        names = dict.fromkeys("".join(t.axes for t in (*self.inputs, self.output)).replace(self.gather or " ", ""))
        return "".join(names) if any(a not in self.output.axes for a in names) else ""

    @cached_property
    def matrices(self) -> tuple[Tensor, ...]:
        """The weights, its own and tied ones, that it sums over: matrices, and no bias or scale."""
        found = []
        for tensor in self.inputs if self.multiplied else ():
            own = tensor.axes.replace(self.gather or " ", "")
            summed = any(axis not in self.output.axes for axis in own)
            if tensor.role in ("weight", "tied") and len(own) > 1 and summed:
                found.append(tensor)
        return tuple(found)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The op's cost, with one term for each column and monomial."""
        found: dict[tuple[int, int, Monomial], list[str]] = {}

        def add(column: str, axes: str, kind: str = "product", scale: int = 1) -> None:
            fixed, runtime = split(axes)
            monomial = Monomial(runtime, kind, self.mask if kind != "product" else None)
            monomial = ONCE if monomial == ONCE else monomial
            found.setdefault((Cost._fields.index(column), scale, monomial), []).append(fixed)

        for role, axes in self.inputs:
            if role == "activation":
                add("activations", axes)
            elif role in ("cache", "shared"):
                add("cache_read", axes.replace("S", ""), "span") if self.mask else add("cache_read", axes)
            elif role == "state":
                add("cache_read", axes)
                add("cache_written", axes)
            elif role == "weight":
                add("params", axes)
            if role in ("weight", "tied", "buffer") and not (self.gather and self.gather in axes):
                add("weights_read", axes)
        if self.output.role == "state":
            add("cache_read", self.output.axes)
        if self.output.role == "cache" and self.mask:  # what is made of a chunk, once the chunk is whole
            add("cache_written", self.output.axes.replace("S", ""), "pairs")
        elif self.output.role != "chip":
            add("cache_written" if self.output.role in ("cache", "state") else "activations", self.output.axes)
        if self.mask and self.multiplied:
            add("flops", self.multiplied.replace("T", "").replace("S", ""), "pairs", scale=2)
        elif self.multiplied:
            add("flops", self.multiplied, scale=2)
        whole = [Term(column, scale, "+".join(sorted(fixed)), m) for (column, scale, m), fixed in found.items()]
        return tuple(whole + ([self._rows_read] if self.gather else []))

    @property
    def _rows_read(self) -> Term:
        """What is read of the gathered weight: at most a row an index, at most all rows."""
        owned = sorted(split(axes.replace(self.gather, ""))[0] for _, axes in self.inputs if self.gather in axes)
        per_index, runtime = split(self.indices)
        rows = Monomial(runtime, "rows", limit=self.gather, per_index=per_index)
        return Term(Cost._fields.index("weights_read"), 1, "+".join(owned), rows)

    def bind(self, sizes: Sizes) -> tuple[Term, ...]:
        """The terms, with the axes that the model fixes put into their monomials."""
        if not (self.gather or (self.mask and (self.mask.limit or self.mask.stride))):
            return self.terms
        found = []
        for column, scale, fixed, monomial in self.terms:
            axes, kind, mask, _, per_index = monomial
            if kind == "rows":
                monomial = Monomial(axes, kind, None, sizes[self.gather], sizes[per_index])
            elif mask:
                monomial = Monomial(axes, kind, mask.bound(sizes))
            found.append(Term(column, scale, fixed, monomial))
        return tuple(found)


def linear(name: str, x: str, matrix: str, y: str, bias: bool, role: str = "activation") -> Op:
    """y = x·matrix (+ bias over the axes of y that the matrix makes)."""
    made = "".join(a for a in matrix if a in y)
    inputs = (activation(x), weight(matrix)) + ((weight(made),) if bias else ())
    return Op(name, inputs, Tensor(role, y))


def split(axes: str) -> tuple[str, str]:
    """(axes that the model fixes, axes that a request sets), each in one order: a product has none."""
    return "".join(sorted(a for a in axes if a not in RUNTIME)), "".join(a for a in RUNTIME if a in axes)


def size(axes: str, dims: Dims) -> Size:
    """Product of the axes' sizes; 1 for no axes."""
    product = 1
    for axis in axes:
        product = product * dims[axis]
    return product


class Sizes(dict):
    """The `size` of `DNH`, or the sum of those of `DNH+NH`, computed when first asked for.

    Ops of one layer share most products.
    """

    def __missing__(self, key: str) -> Size:
        if len(key) == 1:
            raise KeyError(key)  # an axis that this part of the model does not have
        value = self[key] = sum([size(axes, self) for axes in key.split("+")]) if "+" in key else size(key, self)
        return value


def params(op: Op, dims: Dims) -> Size:
    """Elements of the weights that the op owns."""
    return sum([size(t.axes, dims) for t in op.inputs if t.role == "weight"])
