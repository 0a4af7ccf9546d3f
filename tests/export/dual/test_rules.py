import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from export.dual.interpreter import DualInterpreter
from export.dual.rule import PAIRS, TANGENTS, Directions, Dual
from export.errors import MissingRuleError
from tests.export.dual import oracle
from tests.export.dual.cases import CASES
from tests.export.dual.oracle import Case, Chooser

aten = torch.ops.aten


def test_every_rule_has_a_case():
    """Add one to cases.py, beside those of similar ops."""
    assert (TANGENTS.keys() | PAIRS.keys()) - CASES.keys() == set()


def test_every_case_has_a_rule():
    assert CASES.keys() - (TANGENTS.keys() | PAIRS.keys()) == set()


@pytest.mark.parametrize(
    ("target", "generator"),
    [
        pytest.param(target, generator, id=f"{target}-{generator.__name__}")
        for target, generators in CASES.items()
        for generator in generators
    ],
)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rule(target, generator, data):
    chooser = Chooser(data.draw)
    oracle.check(target, generator(chooser), chooser.directions)


# --- what rules refuse: an op that would mix the examples of a batch ---


def rows(*shape, moving=True):
    return Dual(torch.ones(2, *shape), torch.ones(2, *shape) if moving else None, batched=True)


def weight(*shape):
    return Dual(torch.ones(*shape), torch.ones(2, *shape), batched=False)


def known(value, *, batched):
    return Dual(value, None, batched)


REFUSED = [
    (aten.sum.dim_IntList, (rows(3), [0])),
    (aten.mean.dim, (rows(3), None)),
    (aten.softmax.int, (rows(3), 0)),
    (aten.softmax.int, (rows(3), -2)),
    (aten.transpose.int, (rows(3), 0, 1)),
    (aten.t.default, (rows(3),)),
    (aten.permute.default, (rows(3), [1, 0])),
    (aten.select.int, (rows(3), 0, 0)),
    (aten.slice.Tensor, (rows(3), 0, 0, 1)),
    (aten.split.Tensor, (rows(3), 1, 0)),
    (aten.unsqueeze.default, (rows(3), 0)),
    (aten.expand.default, (rows(3), [4, 2, 3])),
    (aten.cat.default, ([rows(3), rows(3)], 0)),
    (aten.cat.default, ([rows(3), weight(2, 3)], 1)),
    (aten.stack.default, ([rows(3), rows(3)],)),
    (aten.gather.default, (rows(3), 0, known(torch.zeros(2, 3, dtype=torch.int64), batched=True))),
    (aten.gather.default, (weight(2, 3), 1, known(torch.zeros(2, 3, dtype=torch.int64), batched=True))),
    (aten.index.Tensor, (weight(5, 3), [known(torch.zeros(2, dtype=torch.int64), batched=True)])),
    (aten.mul.Tensor, (rows(), weight(3, 1))),
    (aten.add.Tensor, (rows(3), weight(2, 3))),
    (aten.matmul.default, (rows(3), known(torch.ones(2, 3, 4), batched=True))),
    (aten.matmul.default, (rows(3), weight(3))),
    (aten.matmul.default, (weight(4, 3), rows(3, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args"), [pytest.param(*r, id=f"{r[0]}-{i}") for i, r in enumerate(REFUSED)])
def test_no_rule_mixes_examples(target, args):
    with pytest.raises(MissingRuleError, match=f"{target} .* does not cover"):
        oracle.run(target, Case(args), Directions(1, 2))


# --- two ops that share what they need ---


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("tokens", "size"), [(5, 2), (2, 5)])
@pytest.mark.parametrize("axis", [-1, 3, -2])
@pytest.mark.parametrize("moving", ["both", "shares"])
def test_products_with_shares(count, tokens, size, axis, moving):
    """A softmax's tangent is written out only where something needs it."""
    batch, heads = 2, 3

    def attended(scores, values):
        return torch.matmul(torch.softmax(scores, axis), values)

    graph = fx.Graph()
    scores, values = graph.placeholder("scores"), graph.placeholder("values")
    shares = graph.call_function(aten.softmax.int, (scores, axis))
    graph.output(graph.call_function(aten.matmul.default, (shares, values)))
    shapes = (batch, heads, tokens, tokens), (batch, heads, tokens, size)
    plain = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    along = [torch.randn(count * batch, *shape[1:], dtype=torch.float64) for shape in shapes]
    if moving == "shares":
        along[1].zero_()
    duals = [Dual(value, None if not slope.any() else slope, True) for value, slope in zip(plain, along, strict=True)]
    found = DualInterpreter(fx.GraphModule({}, graph), Directions(count, batch)).run(*duals)
    for direction in range(count):
        rows = slice(direction * batch, (direction + 1) * batch)
        value, slope = torch.func.jvp(attended, tuple(plain), tuple(part[rows] for part in along))
        torch.testing.assert_close(found.value, value)
        torch.testing.assert_close(found.tangent[rows], slope)
