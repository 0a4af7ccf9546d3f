"""List the calls of each op with a forward-AD rule in models: one generator of calls per op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from export.dual.rule import Target
from export.graph import ops
from export.graph.vocabulary import token_losses
from tests.export.dual.oracle import Case, Chooser, constant

aten = torch.ops.aten
Generator = Callable[[Chooser], Case]

CASES: dict[Target, list[Generator]] = {}


def case(*targets: Any) -> Callable[[Generator], Generator]:
    def register(generator: Generator) -> Generator:
        for target in targets:
            CASES.setdefault(target, []).append(generator)
        return generator

    return register


# --- elementwise ---


@case(
    aten.tanh.default, aten.sigmoid.default, aten.relu.default, aten.silu.default, aten.exp.default,
    aten.cos.default, aten.sin.default, aten.neg.default, aten.gelu.default,
)  # fmt: skip
def unary(c: Chooser) -> Case:
    return Case((c.either(*c.sizes()),))


@case(aten.gelu.default)
def approximate_gelu(c: Chooser) -> Case:
    return Case((c.either(*c.sizes()),), {"approximate": c.one_of("tanh", "none")})


@case(aten.rsqrt.default, aten.sqrt.default)
def unary_of_positive(c: Chooser) -> Case:
    return Case((c.either(*c.sizes(), positive=True),))


@case(aten.pow.Tensor_Scalar)
def power(c: Chooser) -> Case:
    exponent = c.one_of(2, 3, 2.0, 0.5, -0.5, 1)
    return Case((c.either(*c.sizes(), positive=True), exponent))


@case(aten.clamp.default)
def clamp(c: Chooser) -> Case:
    limits = c.one_of((-0.5,), (-0.5, 0.5), (None, 0.5))
    return Case((c.either(*c.sizes()), *limits))


@case(aten.to.dtype)
def cast(c: Chooser) -> Case:
    return Case((c.either(*c.sizes()), c.one_of(torch.float32, torch.float64)))


@case(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
def arithmetic(c: Chooser) -> Case:
    shape, (left, right) = c.sizes(1, 3), c.moving(2)
    return Case((c.operand(shape, moving=left), c.operand(shape, moving=right, positive=True)))


@case(aten.add.Tensor, aten.sub.Tensor)
def scaled_sum(c: Chooser) -> Case:
    shape, (left, right) = c.sizes(1, 3), c.moving(2)
    return Case((c.operand(shape, moving=left), c.operand(shape, moving=right)), {"alpha": c.one_of(1, 2, -0.5)})


@case(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
def flattened_rows_and_weight(c: Chooser) -> Case:
    """Tokens folded into the batch, and a bias or an IA3 vector."""
    size, (left, right) = c.size(), c.moving(2)
    return Case((c.rows(size, repeat=c.size(), moving=left), c.weight(size, moving=right, positive=True)))


@case(
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor,
    aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Scalar, aten.div.Scalar,
)  # fmt: skip
def arithmetic_with_a_number(c: Chooser) -> Case:
    return Case((c.either(*c.sizes()), c.one_of(2, -0.5, 3.0)))


@case(aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)
def scaled_sum_with_a_number(c: Chooser) -> Case:
    return Case((c.either(*c.sizes()), c.one_of(2, -0.5), c.one_of(1, 3)))


@case(aten.where.self)
def where(c: Chooser) -> Case:
    shape, (left, right) = c.sizes(1, 3), c.moving(2)
    operands = c.operand(shape, moving=left), c.operand(shape, moving=right)
    return Case((_mask(c, shape), *operands))


@case(aten.where.ScalarOther)
def where_or_number(c: Chooser) -> Case:
    shape = c.sizes(1, 3)
    return Case((_mask(c, shape), c.operand(shape, moving=True), 0.25))


@case(aten.masked_fill.Scalar)
def masked_fill(c: Chooser) -> Case:
    shape = c.sizes(1, 3)
    return Case((c.operand(shape, moving=True), _mask(c, shape), -3.0))


def _mask(c: Chooser, shape: list[int]) -> Any:
    shape = c.broadcast(shape)
    if c.flag():
        return constant(c.booleans([c.B, *shape]), batched=True)
    return constant(c.booleans([1, *shape] if c.flag() else shape), batched=False)


# --- matrix products ---


@case(ops.linear)
def frozen_linear(c: Chooser) -> Case:
    inner = c.size()
    return Case((c.either(*c.sizes(0, 2), inner), c.weight(c.size(), inner, moving=False)))


@case(ops.linear_t)
def frozen_linear_t(c: Chooser) -> Case:
    outer = c.size()
    return Case((c.either(*c.sizes(0, 2), outer), c.weight(outer, c.size(), moving=False)))


@case(token_losses)
def vocabulary(c: Chooser) -> Case:
    """A vocabulary layer in parts, and the tokens that follow."""
    tokens, inner = c.size(), c.size()
    parts = [c.weight(c.size(), inner, moving=False) for _ in range(c.size(1, 3))]
    labels = c.integers(sum(len(part.value) for part in parts), (c.B, tokens))
    return Case((c.rows(tokens, inner), constant(labels, batched=True), parts))


@case(aten.linear.default)
def adapter(c: Chooser) -> Case:
    inner, (left, right) = c.size(), c.moving(2)
    x = c.either(*c.sizes(0, 2), inner, moving=left)
    return Case((x, c.weight(c.size(), inner, moving=right)))


@case(aten.linear.default)
def adapter_on_flattened_rows(c: Chooser) -> Case:
    inner, (left, right) = c.size(), c.moving(2)
    return Case((c.rows(inner, repeat=c.size(), moving=left), c.weight(c.size(), inner, moving=right)))


@case(aten.matmul.default)
def attention(c: Chooser) -> Case:
    outer, inner, (left, right) = c.sizes(1, 2), c.size(), c.moving(2)
    return Case((c.rows(*outer, inner, moving=left), c.rows(*outer[:-1], inner, c.size(), moving=right)))


@case(aten.matmul.default)
def activation_times_weight(c: Chooser) -> Case:
    inner, (left, right) = c.size(), c.moving(2)
    return Case((c.rows(*c.sizes(0, 2), inner, moving=left), c.weight(inner, c.size(), moving=right)))


@case(aten.matmul.default)
def product_of_weights(c: Chooser) -> Case:
    inner, (left, right) = c.size(), c.moving(2)
    return Case((c.weight(*c.sizes(1, 2), inner, moving=left), c.weight(inner, c.size(), moving=right)))


@case(aten.bmm.default)
def batched_product(c: Chooser) -> Case:
    repeat, inner, (left, right) = c.size(), c.size(), c.moving(2)
    x = c.rows(c.size(), inner, moving=left, repeat=repeat)
    return Case((x, c.rows(inner, c.size(), moving=right, repeat=repeat)))


# --- normalization and reduction ---


@case(aten.layer_norm.default)
def layer_norm(c: Chooser) -> Case:
    inner, (x, weight, bias) = c.sizes(1, 2), c.moving(3)
    inner[-1] += 1
    operands = c.either(*c.sizes(0, 2), *inner, moving=x), inner, c.weight(*inner, moving=weight)
    return Case((*operands, c.weight(*inner, moving=bias), 1e-5))


@case(aten.layer_norm.default)
def layer_norm_without_weights(c: Chooser) -> Case:
    inner = c.size(2)
    return Case((c.either(*c.sizes(), inner), [inner]))


def _axes(c: Chooser, dims: int, lowest: int, count: int) -> list[int]:
    """Different dimensions from `lowest` on, some of them counted from the end."""
    axes = [c.one_of(*range(lowest, dims))]
    axes += [axis for axis in range(lowest, dims) if axis not in axes and len(axes) < count and c.flag()]
    return [c.one_of(axis, axis - dims) for axis in axes]


@case(aten.sum.dim_IntList, aten.mean.dim)
def reduction(c: Chooser) -> Case:
    x = c.either(*c.sizes(2, 3))
    return Case((x, _axes(c, x.value.dim(), int(x.batched), 2), *c.one_of((), (True,), (False,))))


@case(aten.sum.dim_IntList, aten.mean.dim)
def reduction_of_a_whole_weight(c: Chooser) -> Case:
    return Case((c.weight(*c.sizes()), c.one_of(None, []), c.flag()), {"dtype": torch.float64})


@case(aten.softmax.int, aten.log_softmax.int)
def softmax(c: Chooser) -> Case:
    x = c.either(*c.sizes(1, 3))
    return Case((x, *_axes(c, x.value.dim(), int(x.batched), 1), *c.one_of((), (None,), (torch.float64,))))


@case(aten._softmax.default, aten._log_softmax.default)
def softmax_of_the_core_set(c: Chooser) -> Case:
    x = c.either(*c.sizes(1, 3))
    return Case((x, *_axes(c, x.value.dim(), int(x.batched), 1), False))


# --- shape ---


@case(aten.view.default, aten.reshape.default)
def view(c: Chooser) -> Case:
    a, b, d = c.size(), c.size(), c.size()
    x = c.either(a, b * d)
    first = [x.value.shape[0]] if x.batched else []
    return Case((x, c.one_of([*first, a, b, d], [*first, a * b, d], [*first, -1], [*first, a * b, -1])))


@case(aten.view.default, aten.reshape.default)
def view_of_tokens_as_rows(c: Chooser) -> Case:
    length, size = c.size(), c.size()
    fold = c.flag()
    x = c.rows(length, size) if fold else c.rows(size, repeat=length)
    return Case((x, [c.B * length, size] if fold else [c.B, length, size]))


@case(aten.flatten.using_ints)
def flatten(c: Chooser) -> Case:
    x = c.either(*c.sizes(2, 3))
    return Case((x, c.one_of(0, 1, -2), -1))


@case(aten.unflatten.int)
def unflatten(c: Chooser) -> Case:
    a, b = c.size(), c.size()
    x = c.either(c.size(), a * b)
    return Case((x, c.one_of(-1, x.value.dim() - 1), c.one_of([a, b], [a, -1])))


@case(aten.unsqueeze.default)
def unsqueeze(c: Chooser) -> Case:
    x = c.either(*c.sizes())
    return Case((x, c.one_of(*range(int(x.batched), x.value.dim() + 1), -1)))


@case(aten.squeeze.dim)
def squeeze(c: Chooser) -> Case:
    return Case((c.either(c.size(), 1, c.size()), c.one_of(-2, -1)))


@case(aten.squeeze.default)
def squeeze_all(c: Chooser) -> Case:
    x = c.weight(*c.sizes(), 1) if c.B == 1 else c.either(*c.sizes(), 1)
    return Case((x,))


@case(aten.expand.default)
def expand(c: Chooser) -> Case:
    shape = c.sizes(1, 3)
    x = c.either(*c.broadcast(shape))
    first = [c.one_of(c.B, -1)] if x.batched else c.one_of([], [c.size()])
    return Case((x, [*first, *shape]))


@case(aten.transpose.int)
def transpose(c: Chooser) -> Case:
    x = c.either(*c.sizes(1, 3))
    axes = range(int(x.batched), x.value.dim())
    return Case((x, *(c.one_of(axis, axis - x.value.dim()) for axis in (c.one_of(*axes), c.one_of(*axes)))))


@case(aten.t.default)
def matrix_transpose(c: Chooser) -> Case:
    return Case((c.weight(*c.sizes(1, 2)),))


@case(aten.permute.default)
def permute(c: Chooser) -> Case:
    x = c.either(c.size(), c.size(), c.size())
    first = [0] if x.batched else []
    order = c.one_of([0, 2, 1], [1, 2, 0], [2, 0, 1])
    return Case((x, [*first, *((d + len(first)) - c.one_of(0, x.value.dim()) for d in order)]))


@case(aten.slice.Tensor)
def slice_(c: Chooser) -> Case:
    x = c.either(c.size(2), c.size(2))
    dim = c.one_of(-1, -2)
    return Case((x, dim, *c.one_of((1,), (0, 1), (None, -1), (-1, 2**63 - 1), (0, 2**63 - 1, 2))))


@case(aten.slice.Tensor)
def slice_of_the_whole_batch(c: Chooser) -> Case:
    return Case((c.rows(c.size()), 0, 0, 2**63 - 1))


@case(aten.select.int)
def select(c: Chooser) -> Case:
    x = c.either(c.size(), c.size())
    dim = c.one_of(-1, -2, x.value.dim() - 1)
    return Case((x, dim, c.one_of(0, -1)))


@case(aten.split.Tensor)
def split(c: Chooser) -> Case:
    x = c.either(c.size(), c.size())
    return Case((x, c.size(1, 3), c.one_of(-1, -2, x.value.dim() - 1)))


@case(aten.split_with_sizes.default)
def split_with_sizes(c: Chooser) -> Case:
    sizes = c.sizes(1, 3)
    x = c.either(c.size(), sum(sizes))
    return Case((x, sizes, c.one_of(-1, x.value.dim() - 1)))


@case(aten.cat.default)
def cat(c: Chooser) -> Case:
    make, size, moving = c.one_of(c.rows, c.weight), c.size(), c.moving(3)
    parts = [make(c.size(), size, moving=moves) for moves in moving]
    return Case((parts, c.one_of(-2, parts[0].value.dim() - 2)))


@case(aten.stack.default)
def stack(c: Chooser) -> Case:
    make, shape, moving = c.one_of(c.rows, c.weight), c.sizes(1, 2), c.moving(2)
    parts = [make(*shape, moving=moves) for moves in moving]
    return Case((parts, c.one_of(*range(int(parts[0].batched), parts[0].value.dim() + 1), -1)))


# --- indexing ---


@case(aten.gather.default)
def gather(c: Chooser) -> Case:
    shape = c.sizes(1, 3)
    x = c.either(*shape)
    dims = x.value.dim()
    (axis,) = _axes(c, dims, int(x.batched), 1)
    taken = list(x.value.shape)
    taken[axis] = c.size()
    index = c.integers(x.value.shape[axis], taken)
    return Case((x, axis, constant(index, batched=x.batched)))


@case(aten.index.Tensor)
def token_of_each_example(c: Chooser) -> Case:
    length = c.size()
    x = c.rows(length, *c.sizes(0, 2))
    rows, positions = torch.arange(c.B), c.integers(length, [c.B])
    return Case((x, [constant(rows, batched=False), constant(positions, batched=True)]))


@case(aten.index.Tensor)
def positions_of_all(c: Chooser) -> Case:
    length, count = c.size(), c.size()
    x = c.either(length, c.size())
    leading = [None] * int(x.batched)
    return Case((x, [*leading, constant(c.integers(length, [count]), batched=False)]))
