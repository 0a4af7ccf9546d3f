"""How XNNPACK likes its arithmetic: ops that its delegate does not take, written with ops that it takes.

One function per op, called with the op's own arguments while a program is traced again. What is not listed stays as
it is. The delegate knows float tensors of up to six dimensions, products as `bmm` or as a linear with a stored weight,
softmax along the last dimension, and elementwise arithmetic with broadcasting; it knows no booleans (`Mask` stands for
them), no reductions (a product with a row of ones is one) and no `expand` (so is a product with ones).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export import ops

aten = torch.ops.aten

TINY = 1e-30
"""Keeps quotients defined at 0, and is lost in rounding anywhere else."""
_MOST_JOINED = 5
"""How many tensors XNNPACK concatenates at once."""


@dataclass(frozen=True)
class Mask:
    """A boolean tensor held as 0.0 and 1.0."""

    ones: Tensor

    def boolean(self) -> Tensor:
        return self.ones.to(torch.bool)


@dataclass(frozen=True)
class Fill:
    """A tensor of one number."""

    number: float
    shape: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        return torch.full(self.shape, self.number, dtype=self.dtype)


Formulation = Callable[..., Any]
FORMULATIONS: dict[Any, Formulation] = {}


def formulation(*targets: Any) -> Callable[[Formulation], Formulation]:
    def register(function: Formulation) -> Formulation:
        FORMULATIONS.update(dict.fromkeys(targets, function))
        return function

    return register


def plain(value: Any) -> Any:
    """The tensor that a value stands for."""
    return value.boolean() if isinstance(value, Mask) else value.tensor() if isinstance(value, Fill) else value


# --- products ---------------------------------------------------------------------------------------------------------


@formulation(aten.matmul.default, aten.bmm.default, aten.mm.default)
def _product(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() == 1:
        return _product(x.reshape(1, -1), y).reshape(*y.shape[:-2], y.shape[-1])
    if y.dim() == 1:
        return _product(x, y.reshape(-1, 1)).reshape(x.shape[:-1])
    if y.dim() == 2:
        flat = torch.bmm(x.reshape(1, -1, x.shape[-1]), y.reshape(1, *y.shape))
        return flat.reshape(*x.shape[:-1], y.shape[-1])
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    left, right = _expand(x, [*batch, *x.shape[-2:]]), _expand(y, [*batch, *y.shape[-2:]])
    flat = torch.bmm(left.reshape(-1, *x.shape[-2:]), right.reshape(-1, *y.shape[-2:]))
    return flat.reshape(*batch, x.shape[-2], y.shape[-1])


@formulation(aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """With a weight that comes at run time."""
    rows, columns = weight.shape
    turned = weight.reshape(columns, rows) if 1 in (rows, columns) else weight.permute(1, 0)
    result = _product(x, turned)
    return result if bias is None else result + bias


@formulation(aten.addmm.default)
def _addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _product(x, y) + bias


# --- reductions -------------------------------------------------------------------------------------------------------


def _reduce(x: Tensor, dims: Sequence[int], keepdim: bool, factor: float) -> Tensor:
    """`factor` times the sum over `dims`, as a product with one stored row."""
    reduced = sorted(dim % x.dim() for dim in dims)
    kept = [dim for dim in range(x.dim()) if dim not in reduced]
    count = math.prod(x.shape[dim] for dim in reduced)
    ordered = x if [*kept, *reduced] == list(range(x.dim())) else x.permute([*kept, *reduced])
    row = torch.full((1, count), factor)
    total = ops.linear(ordered.reshape(*[x.shape[dim] for dim in kept], count), row)
    shape = [1 if dim in reduced else x.shape[dim] for dim in range(x.dim())] if keepdim else [x.shape[d] for d in kept]
    return total.reshape(shape)


def _dims(x: Tensor, dims: Sequence[int] | int | None) -> list[int]:
    return list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)


@formulation(aten.sum.dim_IntList)
def _sum(x: Any, dims: Any, keepdim: bool = False, **keywords: Any) -> Tensor:
    if isinstance(x, Mask):
        x = x.ones
    if x.dtype != torch.float32 or x.dim() == 0:
        return aten.sum.dim_IntList(x, dims, keepdim, **keywords)
    return _reduce(x, _dims(x, dims), keepdim, 1.0)


@formulation(aten.mean.dim)
def _mean(x: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    listed = _dims(x, dims)
    return _reduce(x, listed, keepdim, 1 / math.prod(x.shape[dim] for dim in listed))


@formulation(aten.native_layer_norm.default)
def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(-len(shape), 0))
    mean = _mean(x, axes, True)
    centred = x - mean
    scale = torch.rsqrt(_mean(centred * centred, axes, True) + eps)
    result = centred * scale
    if weight is not None:
        result = result * weight
    return (result if bias is None else result + bias), mean, scale


@formulation(aten.layer_norm.default)
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *rest: Any,
) -> Tensor:  # fmt: skip
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


@formulation(aten.softmax.int, aten._softmax.default)
def _softmax(x: Tensor, dim: int, *rest: Any) -> Tensor:
    if dim % x.dim() == x.dim() - 1:
        return torch.softmax(x, -1)
    return torch.softmax(x.transpose(dim, -1), -1).transpose(dim, -1)


# --- elementwise ------------------------------------------------------------------------------------------------------


@formulation(aten.gelu.default)
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """XNNPACK's own tanh form is off by 1e-4."""
    if approximate == "none":
        return aten.gelu.default(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@formulation(aten.silu.default)
def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@formulation(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, exponent: float) -> Tensor:
    if exponent == int(exponent) and 1 <= exponent <= 4:
        return math.prod([x] * (int(exponent) - 1), start=x)
    known = {0.5: torch.sqrt, -0.5: torch.rsqrt}.get(exponent)
    return known(x) if known else aten.pow.Tensor_Scalar(x, exponent)


@formulation(aten.rsub.Scalar)
def _rsub(x: Tensor, other: float, alpha: float = 1) -> Tensor:
    return torch.full((1,) * x.dim(), other, dtype=x.dtype) - (x if alpha == 1 else x * alpha)


@formulation(aten.reciprocal.default)
def _reciprocal(x: Tensor) -> Tensor:
    return torch.ones((1,) * x.dim()) / x


@formulation(aten.mul.Tensor, aten.mul.Scalar)
def _mul(x: Any, y: Any) -> Tensor:
    if isinstance(y, int | float) and y == 1:
        return plain(x)
    return plain(x) * plain(y)


@formulation(aten.div.Tensor, aten.div.Scalar)
def _div(x: Any, y: Any) -> Tensor:
    return plain(x) / plain(y) if isinstance(y, Tensor | Fill) else plain(x) * (1 / y)


# --- masks ------------------------------------------------------------------------------------------------------------


def mask_of(value: Any) -> Mask:
    if isinstance(value, Mask):
        return value
    return Mask(value.to(torch.float32))


def _positive(x: Tensor) -> Mask:
    """Where floats are above 0, without a comparison; a number up to about 1e-30 counts as somewhat positive."""
    return Mask(torch.relu(x) / (torch.abs(x) + TINY))


@formulation(aten.gt.Scalar)
def _gt(x: Any, limit: float) -> Mask:
    if isinstance(x, Tensor) and x.dtype == torch.float32:
        return _positive(x if limit == 0 else x - limit)
    return mask_of(aten.gt.Scalar(plain(x), limit))


@formulation(aten.le.Scalar)
def _le(x: Any, limit: float) -> Mask:
    return _not(_gt(x, limit))


@formulation(aten.logical_not.default, aten.bitwise_not.default)
def _not(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dtype != torch.bool:
        return aten.bitwise_not.default(x)
    return Mask(_rsub(mask_of(x).ones, 1.0))


@formulation(aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default)
def _and(x: Any, y: Any) -> Mask:
    return Mask(mask_of(x).ones * mask_of(y).ones)


@formulation(aten.__or__.Tensor, aten.bitwise_or.Tensor, aten.logical_or.default)
def _or(x: Any, y: Any) -> Mask:
    return Mask(torch.maximum(mask_of(x).ones, mask_of(y).ones))


@formulation(aten.to.dtype, aten.to.device, aten._to_copy.default)
def _to(x: Any, *rest: Any, **keywords: Any) -> Any:
    dtype = keywords.get("dtype") or next((part for part in rest if isinstance(part, torch.dtype)), None)
    if dtype == torch.bool and not isinstance(x, Mask):
        return mask_of(plain(x).to(torch.bool))
    if isinstance(x, Mask) and dtype in (torch.bool, torch.float32):
        return x if dtype == torch.bool else x.ones
    return plain(x).to(dtype or plain(x).dtype)


@formulation(aten.full.default)
def _full(shape: Sequence[int], number: float, **keywords: Any) -> Fill:
    return Fill(number, tuple(shape), keywords.get("dtype") or torch.get_default_dtype())


@formulation(aten.scalar_tensor.default)
def _scalar_tensor(number: float, **keywords: Any) -> Fill:
    return _full((), number, **keywords)


@formulation(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(condition: Any, x: Any, y: Any) -> Any:
    """Arithmetic instead of a choice: both sides are finite numbers."""
    if any(isinstance(side, Mask) or (isinstance(side, Tensor) and side.dtype != torch.float32) for side in (x, y)):
        return aten.where.self(plain(condition), plain(x), plain(y))
    keep = mask_of(condition).ones
    left, right = _finite(x), _finite(y)
    if isinstance(left, float) and isinstance(right, float):
        return keep * (left - right) + right if right else keep * left
    other = _rsub(keep, 1.0)
    terms = [side * factor for side, factor in ((left, keep), (right, other)) if not isinstance(side, float) or side]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _finite(side: Any) -> Any:
    if isinstance(side, Tensor):
        return side
    limit = torch.finfo(torch.float32).max
    return min(max(float(side.number if isinstance(side, Fill) else side), -limit), limit)


@formulation(aten.masked_fill.Scalar)
def _masked_fill(x: Tensor, mask: Any, number: float) -> Any:
    return _where(mask, number, x)


# --- shapes -----------------------------------------------------------------------------------------------------------


def _same_kind(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return Mask(change(value.ones)) if isinstance(value, Mask) else change(plain(value))


@formulation(aten.expand.default)
def _expand(x: Any, shape: Sequence[int], **keywords: Any) -> Any:
    return _same_kind(x, lambda tensor: _spread(tensor, shape))


def _spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    padded = [1] * (len(shape) - x.dim()) + list(x.shape)
    target = [old if new == -1 else new for old, new in zip(padded, shape, strict=True)]
    source = x if padded == list(x.shape) else x.reshape(padded)
    if target == padded:
        return source
    if x.dtype != torch.float32:
        return source.expand(target)
    return source * torch.ones([1 if new == old else new for old, new in zip(padded, target, strict=True)])


@formulation(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Any:
    def change(tensor: Tensor) -> Tensor:
        at = dim % (tensor.dim() + 1)
        return tensor.reshape(*tensor.shape[:at], 1, *tensor.shape[at:])

    return _same_kind(x, change)


@formulation(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(x: Any, dims: Any = None) -> Any:
    def change(tensor: Tensor) -> Tensor:
        gone = {dim % tensor.dim() for dim in _dims(tensor, dims)} if tensor.dim() else set[int]()
        return tensor.reshape([size for dim, size in enumerate(tensor.shape) if size != 1 or dim not in gone])

    return _same_kind(x, change)


@formulation(aten.view.default, aten.reshape.default)
def _view(x: Any, shape: Sequence[int]) -> Any:
    return _same_kind(x, lambda tensor: tensor.reshape(list(shape)))


@formulation(aten.slice.Tensor)
def _slice(x: Any, *rest: Any) -> Any:
    return _same_kind(x, lambda tensor: aten.slice.Tensor(tensor, *rest))


@formulation(aten.select.int)
def _select(x: Any, dim: int, index: int) -> Any:
    def change(tensor: Tensor) -> Tensor:
        at, axis = index % tensor.shape[dim], dim % tensor.dim()
        part = aten.slice.Tensor(tensor, axis, at, at + 1)
        return part.reshape([size for i, size in enumerate(tensor.shape) if i != axis])

    return _same_kind(x, change)


@formulation(aten.index.Tensor)
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return _same_kind(x, lambda tensor: aten.index.Tensor(tensor, [None if i is None else plain(i) for i in indices]))


@formulation(aten.split.Tensor, aten.split_with_sizes.default)
def _split(x: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    length = x.shape[dim]
    listed = list(sizes) if not isinstance(sizes, int) else [min(sizes, length - i) for i in range(0, length, sizes)]
    starts = [sum(listed[:i]) for i in range(len(listed))]
    return [aten.slice.Tensor(x, dim, start, start + size) for start, size in zip(starts, listed, strict=True)]


@formulation(aten.cat.default)
def _cat(parts: Sequence[Any], dim: int = 0) -> Tensor:
    tensors = [plain(part) for part in parts]
    if len(tensors) > 1 and all(tensor is tensors[0] for tensor in tensors):
        return _repeat(tensors[0], len(tensors), dim)
    while len(tensors) > _MOST_JOINED:
        tensors = [torch.cat(tensors[i : i + _MOST_JOINED], dim) for i in range(0, len(tensors), _MOST_JOINED)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def _repeat(x: Tensor, count: int, dim: int) -> Tensor:
    """A tensor joined with itself, which XNNPACK takes for one tensor too few to join: a product with ones."""
    if x.dtype != torch.float32:
        return torch.cat([x] * count, dim)
    axis = dim % x.dim()
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    spread = x.reshape(before, 1, after) * torch.ones(1, count, 1)
    return spread.reshape(*x.shape[:axis], count * x.shape[axis], *x.shape[axis + 1 :])


@formulation(aten.stack.default)
def _stack(parts: Sequence[Any], dim: int = 0) -> Tensor:
    return _cat([_unsqueeze(plain(part), dim) for part in parts], dim)


@formulation(aten.slice_scatter.default)
def _slice_scatter(x: Any, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None) -> Tensor:
    """The slice between what lies before and after it."""
    size = plain(x).shape[dim]
    first = min(max((start or 0) + size * ((start or 0) < 0), 0), size)
    last = first + part.shape[dim]
    if isinstance(x, Fill) and x.number == 0:
        padding = [0, 0] * (part.dim() - 1 - dim % part.dim()) + [first, size - last]
        return aten.constant_pad_nd.default(part, padding, 0.0)
    whole = plain(x)
    sides = [aten.slice.Tensor(whole, dim, 0, first), part, aten.slice.Tensor(whole, dim, last, size)]
    return _cat([side for side in sides if side.shape[dim]], dim)
