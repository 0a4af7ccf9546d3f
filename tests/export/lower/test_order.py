"""Nodes wait for their first reader where nothing is held longer for it."""

from __future__ import annotations

from onnx import NodeProto, helper

from export.lower.onnx.passes.order import delay


def delayed(*nodes: tuple[str, str]) -> list[str]:
    """The order of nodes that are told by what they read and give; `x` is given."""
    made: list[NodeProto] = [helper.make_node("Op", list(reads), [gives]) for reads, gives in nodes]
    delay(made, {"x"})
    return [node.output[0] for node in made]


def test_a_node_waits_for_its_first_reader() -> None:
    assert delayed(("x", "a"), ("x", "b"), ("b", "c"), ("ac", "d")) == ["b", "c", "a", "d"]


def test_a_node_whose_input_would_be_held_for_it_stays() -> None:
    assert delayed(("x", "a"), ("a", "b"), ("x", "c"), ("bc", "d")) == ["a", "b", "c", "d"]


def test_a_node_waits_where_its_input_is_held_anyway() -> None:
    assert delayed(("x", "a"), ("a", "b"), ("a", "c"), ("bc", "d"), ("da", "e")) == ["a", "c", "b", "d", "e"]


def test_a_result_stays_where_it_is() -> None:
    assert delayed(("x", "a"), ("x", "b")) == ["a", "b"]
