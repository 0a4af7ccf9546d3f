"""Layer normalization; RMS normalization is made of elementwise ops and needs no rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, pair_of, tangent, total

aten = torch.ops.aten

_HALF = (torch.bfloat16, torch.float16)


@pair_of(aten.layer_norm.default)
def _layer_norm(
    directions: Directions,
    x: Dual,
    shape: Sequence[int],
    weight: Dual | None = None,
    bias: Dual | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    """Differentiate y = w·n + b with n = (x - mean)·r: dn = r·(dx - mean(dx) - n·mean(n·dx)).

    Half precision is computed in float32, as the op itself does inside.
    """
    if x.value.dtype in _HALF:
        wide = _layer_norm(directions, _wide(x), shape, _wide(weight), _wide(bias), eps)
        return wide[0].to(x.value.dtype), wide[1].to(x.value.dtype)
    axes = list(range(-len(shape), 0))
    plain, _, scale = torch.native_layer_norm(x.value, list(shape), None, None, eps)
    result = plain if weight is None else plain * weight.value
    if bias is not None:
        result = result + bias.value
    terms: list[Tensor | None] = []
    if x.tangent is not None:
        moving, shared = directions.apart(x.tangent, batched=x.batched), directions.shared(plain, batched=x.batched)
        overlap = (moving * shared).mean(axes, keepdim=True)
        rest_of = moving - moving.mean(axes, keepdim=True) - overlap * shared
        factor = scale if weight is None else scale * weight.value  # once, however many directions there are
        slope = rest_of * directions.shared(factor, batched=x.batched)
        terms.append(directions.together(slope, batched=x.batched))
    if weight is not None and weight.tangent is not None:
        spread = directions.spread(weight, result, batched=x.batched)
        terms.append(directions.scale(spread, plain, batched=x.batched))
    if bias is not None and tangent(bias) is not None:
        spread = directions.spread(bias, result, batched=x.batched)
        terms.append(spread if terms else spread.expand(directions.shape(result, batched=x.batched)))
    return result, total(*terms)


def _wide(operand: Dual | None) -> Dual | None:
    if operand is None:
        return None
    slope = None if operand.tangent is None else operand.tangent.float()
    return Dual(operand.value.float(), slope, operand.batched)
