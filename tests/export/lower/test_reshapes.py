"""Reshapes that change nothing, and those of reshapes, are not written; what is computed stays the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from torch import empty, fx

from export.lower.onnx.graph import Graph


def written(graph: Graph, x: fx.Node, results: list[fx.Node]) -> onnx.ModelProto:
    return onnx.load_from_string(graph.model([x], results))


def count(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "Reshape" for node in model.graph.node)


def started(*shapes: tuple[int, ...]) -> tuple[Graph, list[fx.Node]]:
    """A graph with an input of the first shape, and nodes for results of the others."""
    graph, nodes = Graph(), [fx.Graph().placeholder(f"x{i}") for i in range(len(shapes))]
    for node, shape in zip(nodes, shapes, strict=True):
        node.meta["val"] = empty(shape)
    graph.values[nodes[0]] = "in0"
    graph.enter("y")
    return graph, nodes


@pytest.mark.parametrize(
    ("chain", "kept"),
    [
        ([(6, 4)], 1),
        ([(6, 4), (3, 8)], 1),
        ([(6, 4), (2, 3, 4)], 0),
        ([(6, 4), (-1, 2), (3, 8)], 1),
        ([(-1, 2), (2, 3, 4)], 0),
        ([(2, 3, 4)], 0),
    ],
)
def test_a_chain(chain: list[tuple[int, ...]], kept: int) -> None:
    shape = chain[-1]
    graph, (x, y) = started((2, 3, 4), shape)
    value: fx.Node | str = x
    for each in chain:
        value = graph.reshape(value, each)
    graph.values[y] = graph.op("Neg", value)
    model = written(graph, x, [y])
    assert count(model) == kept
    given = np.random.default_rng().standard_normal((2, 3, 4), np.float32)
    (found,) = ReferenceEvaluator(model).run(None, {"in0": given})
    np.testing.assert_array_equal(found, -given.reshape(shape))


def test_one_that_something_else_reads_stays() -> None:
    graph, (x, y, z) = started((2, 6), (6, 2), (12,))
    middle = graph.reshape(x, (6, 2))
    graph.values[y] = graph.op("Neg", middle)
    graph.values[z] = graph.op("Exp", graph.reshape(middle, (12,)))
    model = written(graph, x, [y, z])
    assert count(model) == 2
    given = np.random.default_rng().standard_normal((2, 6), np.float32)
    found = ReferenceEvaluator(model).run(None, {"in0": given})
    np.testing.assert_array_equal(found[0], -given.reshape(6, 2))
    np.testing.assert_allclose(found[1], np.exp(given.reshape(12)), rtol=1e-6)


def test_results_are_written_in_their_shape() -> None:
    graph, (x, y, z) = started((2, 6), (3, 4), (2, 6))
    graph.values[y] = graph.reshape(x, (3, 4))
    graph.values[z] = graph.reshape(graph.values[y], (2, 6))
    given = np.random.default_rng().standard_normal((2, 6), np.float32)
    found = ReferenceEvaluator(written(graph, x, [y, z])).run(None, {"in0": given})
    np.testing.assert_array_equal(found[0], given.reshape(3, 4))
    np.testing.assert_array_equal(found[1], given)
