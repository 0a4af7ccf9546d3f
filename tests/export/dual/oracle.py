"""One op, run by the dual interpreter and by `torch.func.jvp`, row by row of its tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from export.dual.interpreter import Directions, Dual, DualInterpreter
from export.graph import ops
from export.graph.vocabulary import token_losses


def _whole_token_losses(x: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    logits = x @ torch.cat(list(weights)).T
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.reshape(labels.shape), logits.argmax(-1)


_ORACLES = {
    ops.linear: torch.nn.functional.linear,
    ops.linear_t: torch.matmul,
    token_losses: _whole_token_losses,
}
"""What torch can differentiate in place of an op of our own."""


@dataclass
class Case:
    """A call of an op: operands are duals, everything else is passed as it is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


class Chooser:
    """Draws shapes, values and tangents; `K` directions over `B` examples."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.K = draw(st.sampled_from([1, 3]))
        self.B = draw(st.integers(1, 3))
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        self.directions = Directions(self.K, self.B)

    def one_of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def size(self, low: int = 1, high: int = 4) -> int:
        return self.draw(st.integers(low, high))

    def sizes(self, low: int = 1, high: int = 3) -> list[int]:
        return [self.size() for _ in range(self.size(low, high))]

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(list(shape), dtype=torch.float64, generator=self.generator)

    def integers(self, below: int, shape: Sequence[int]) -> Tensor:
        return torch.randint(below, list(shape), generator=self.generator)

    def booleans(self, shape: Sequence[int]) -> Tensor:
        return self.integers(2, shape).bool()

    def moving(self, operands: int) -> list[bool]:
        """Which of the operands have tangents: at least one."""
        chosen = self.draw(st.sets(st.integers(0, operands - 1), min_size=1))
        return [i in chosen for i in range(operands)]

    def rows(self, *shape: int, moving: bool = True, positive: bool = False, repeat: int = 1) -> Dual:
        """A batched operand [B·repeat, *shape]."""
        value = self._value([self.B * repeat, *shape], positive)
        return Dual(value, self.normal([self.K * len(value), *shape]) if moving else None, batched=True)

    def weight(self, *shape: int, moving: bool = True, positive: bool = False) -> Dual:
        """An operand that depends on no input, its tangent different for every example."""
        value = self._value(shape, positive)
        return Dual(value, self.normal([self.K * self.B, *shape]) if moving else None, batched=False)

    def either(self, *shape: int, moving: bool = True, positive: bool = False) -> Dual:
        make = self.one_of(self.rows, self.weight)
        return make(*shape, moving=moving, positive=positive)

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """Some of the sizes replaced by one."""
        return [size if self.flag() else 1 for size in shape]

    def operand(self, shape: Sequence[int], *, moving: bool, positive: bool = False) -> Dual:
        """Return what broadcasts against rows of `shape`: rows, or a weight of as many dimensions or fewer."""
        shape = self.broadcast(shape)
        if self.flag():
            return self.rows(*shape, moving=moving, positive=positive)
        if self.flag():
            return self.weight(1, *shape, moving=moving, positive=positive)
        return self.weight(*shape[self.size(0, len(shape)) :], moving=moving, positive=positive)

    def _value(self, shape: Sequence[int], positive: bool) -> Tensor:
        value = self.normal(shape)
        return value.abs() + 0.5 if positive else value


def constant(value: Tensor, *, batched: bool) -> Dual:
    return Dual(value, None, batched)


def run(target: Callable[..., Any], case: Case, directions: Directions) -> list[Dual]:
    """Return what the transform makes of a graph that holds this one call."""
    graph = fx.Graph()
    leaves, spec = tree_flatten((case.args, case.kwargs))
    duals = [leaf for leaf in leaves if isinstance(leaf, Dual)]
    nodes = iter([graph.placeholder(f"x{i}") for i in range(len(duals))])
    args, kwargs = tree_unflatten([next(nodes) if isinstance(leaf, Dual) else leaf for leaf in leaves], spec)
    graph.output(graph.call_function(target, args, kwargs))
    result = DualInterpreter(fx.GraphModule({}, graph), directions).run(*duals)
    return list(result) if isinstance(result, list | tuple) else [result]


def check(target: Callable[..., Any], case: Case, directions: Directions) -> None:
    """Compare values with the op, and each row of the tangents with `torch.func.jvp` along that row."""
    found = run(target, case, directions)
    leaves, spec = tree_flatten((case.args, case.kwargs))
    moving = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Dual) and leaf.tangent is not None]
    batched = any(leaf.batched for leaf in leaves if isinstance(leaf, Dual))
    plain = [leaf.value if isinstance(leaf, Dual) else leaf for leaf in leaves]

    def op(*values: Tensor) -> tuple[Tensor, ...]:
        own = list(plain)
        for i, value in zip(moving, values, strict=True):
            own[i] = value
        args, kwargs = tree_unflatten(own, spec)
        result = _ORACLES.get(target, target)(*args, **kwargs)
        return tuple(result) if isinstance(result, list | tuple) else (result,)

    values = tuple(plain[i] for i in moving)
    for part, expected in zip(found, op(*values), strict=True):
        assert part.batched == batched
        assert part.value.dtype == expected.dtype
        torch.testing.assert_close(part.value, expected)
        if not part.value.is_floating_point():
            assert part.tangent is None
            continue
        assert part.tangent is not None
        assert list(part.tangent.shape) == directions.shape(expected, batched=batched)
    for direction in range(directions.count):
        for example in range(directions.batch):
            tangents = tuple(_row(leaves[i], direction, example, directions) for i in moving)
            _, slopes = torch.func.jvp(op, values, tangents)
            for part, slope in zip(found, slopes, strict=True):
                if part.tangent is None:
                    continue
                own = part.tangent.unflatten(0, (directions.count, directions.batch, -1))[direction, example]
                wanted = slope.unflatten(0, (directions.batch, -1))[example] if batched else slope
                torch.testing.assert_close(own.reshape(wanted.shape), wanted)


def _row(dual: Dual, direction: int, example: int, directions: Directions) -> Tensor:
    """The tangent of one example and direction; the other examples stand still."""
    apart = dual.tangent.unflatten(0, (directions.count, directions.batch, -1))[direction]
    if not dual.batched:
        return apart[example].reshape(dual.value.shape)
    still = torch.zeros_like(apart)
    still[example] = apart[example]
    return still.reshape(dual.value.shape)
