"""Models in half precision: tangents have their values' type, and norms are computed in float32."""

import pytest
import torch

from export.dual.interpreter import Directions, Dual
from tests.export.dual.oracle import Case, run

aten = torch.ops.aten


def rows(generator: torch.Generator, dtype: torch.dtype) -> Dual:
    value, tangent = (torch.randn(4, 64, generator=generator).to(dtype) for _ in range(2))
    return Dual(value, tangent, batched=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_loses_no_more_than_rounding_its_result(dtype):
    generator = torch.Generator().manual_seed(0)
    x = rows(generator, dtype)
    x = Dual(x.value + 30, x.tangent + 30, batched=True)  # sums of large numbers are what half precision spoils
    weight, bias = (Dual(torch.randn(64, generator=generator).to(dtype), None, batched=False) for _ in range(2))

    def norm(*operands: Dual) -> Dual:
        return run(aten.layer_norm.default, Case((operands[0], [64], *operands[1:])), Directions(1, 4))[0]

    def wide(dual: Dual) -> Dual:
        return Dual(dual.value.float(), None if dual.tangent is None else dual.tangent.float(), dual.batched)

    found, exact = norm(x, weight, bias), norm(wide(x), wide(weight), wide(bias))
    assert (found.value.dtype, found.tangent.dtype) == (dtype, dtype)
    assert torch.equal(found.value, exact.value.to(dtype))
    assert torch.equal(found.tangent, exact.tangent.to(dtype))


@pytest.mark.parametrize(
    ("target", "rest", "dtype"),
    [
        (aten.add.Tensor, (Dual(torch.ones(64), None, batched=False),), torch.float32),
        (aten.softmax.int, (-1, torch.float32), torch.float32),
        (aten.to.dtype, (torch.bfloat16,), torch.bfloat16),
    ],
)
def test_a_tangent_has_its_values_type(target, rest, dtype):
    x = rows(torch.Generator().manual_seed(0), torch.bfloat16)
    (found,) = run(target, Case((x, *rest)), Directions(1, 4))
    assert (found.value.dtype, found.tangent.dtype) == (dtype, dtype)
