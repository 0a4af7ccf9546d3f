"""Trace one program of one segment: its inputs in order, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from edge_client.bundle.manifest import DUAL, ENTER, HEAD, PLAIN, SCALAR, VJP
from edge_client.bundle.names import GRADIENT, MOVED
from export.dual.interpreter import Directions, Dual, DualInterpreter
from export.dual.programs import Program
from export.dual.rule import total
from export.graph import vocabulary
from export.graph.bottlenecks import bottlenecks, entering_node
from export.graph.editing import trace
from export.graph.segments import SegmentGraph
from export.graph.slots import STORED, Role, Slot, slot_of, value_of
from export.graph.units import logits_layer

aten = torch.ops.aten

_BATCHED = (Role.INPUT, Role.STATE)


class Tracer:
    """Traces one program of one segment."""

    def __init__(self, segment: SegmentGraph, kind: str, count: int, *, lowest: bool, pieces: int) -> None:
        self.segment = segment
        self.lowest = lowest
        self.pieces = pieces
        self.kind = kind
        own = [(slot_of(n), value_of(n)) for n in segment.graph.graph.nodes if n.op == "placeholder"]
        size = next(value.shape[0] for slot, value in own if slot.role in _BATCHED)
        self.batch = size * pieces
        self.own = [
            (slot, value.new_empty(self.batch, *value.shape[1:]) if slot.role in _BATCHED else value)
            for slot, value in own
        ]
        self.directions = Directions(max(count, 1), size)
        self.count = count
        self.is_head = segment.name == HEAD
        self.bottlenecks = bottlenecks(segment.graph)

    def program(self) -> Program:
        inputs = list(self._inputs())
        step = self._dual_with_gradients if self._gives_gradients() else self._dual
        functions: dict[str, Callable[[dict[Slot, Tensor]], dict[str, Tensor]]] = {
            PLAIN: self._plain, ENTER: step, DUAL: step, SCALAR: self._dual, VJP: self._vjp,
        }  # fmt: skip
        compute = functions[self.kind]
        names: list[str] = []

        def function(*values: Tensor) -> list[Tensor]:
            given = dict(zip((slot for slot, _ in inputs), values, strict=True))
            results = compute(given) if self.pieces == 1 else self._in_pieces(compute, given)
            names[:] = results
            return list(results.values())

        below_autograd = self.kind == VJP or self._gives_gradients()
        graph = trace(function, inputs, below_autograd=below_autograd)
        if vocabulary.is_walked(graph):
            walk = vocabulary.WrittenOut(graph).run
            graph = trace(lambda *values: list(walk(*values)), inputs, below_autograd=below_autograd)
        graph.meta["segment_slots"] = [slot for slot, _ in self.own]
        return Program(self.segment.name, self.kind, self.count, graph, tuple(names))

    # --- inputs ---

    def _inputs(self) -> Iterator[tuple[Slot, Tensor]]:
        """State first, then what else comes at run time, then stored tensors."""
        states = [pair for pair in self.own if pair[0].role is Role.STATE]
        yield from states
        rows = self.directions.count * self.batch
        if self.kind in (DUAL, SCALAR) and states:
            yield Slot(Role.TANGENT, "tangent"), states[0][1].new_empty(rows, *states[0][1].shape[1:])
        if self.kind == VJP and not self.is_head:
            result = self._results()[0]
            yield Slot(Role.GRADIENT, "gradient"), result.new_empty(self.batch, *result.shape[1:])
        yield from (pair for pair in self.own if pair[0].role is Role.INPUT)
        if self._gives_gradients():
            yield _EXAMPLE_WEIGHT, torch.empty(self.batch)
        yield from (pair for pair in self.own if pair[0].role in (Role.ADAPTER, Role.HEAD))
        moving = {ENTER: (Role.ADAPTER,), DUAL: (Role.ADAPTER,), SCALAR: (Role.ADAPTER, Role.HEAD)}.get(self.kind, ())
        for slot, value in self.own:
            if slot.role in moving:
                product = self.bottlenecks.get(slot.name)
                shape = value.shape if product is None else value_of(product).shape[1:]
                yield Slot(Role.DIRECTION, slot.name), value.new_empty(rows, *shape)
        yield from (pair for pair in self.own if pair[0].role in STORED)

    def _results(self) -> list[Tensor]:
        return [value_of(node) for node in self.segment.graph.graph.output_node().args[0]]  # type: ignore[union-attr]

    def _trained_head(self) -> list[Slot]:
        return [slot for slot, _ in self.own if slot.role is Role.HEAD]

    def _gives_gradients(self) -> bool:
        return self.is_head and (self.kind == VJP or (self.kind in (ENTER, DUAL) and bool(self._trained_head())))

    # --- what the programs compute ---

    def _run(self, values: dict[Slot, Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = self._interpreted(values)[0]
        return results

    def _interpreted(self, values: dict[Slot, Tensor]) -> tuple[Any, dict[fx.Node, Any]]:
        interpreter = fx.Interpreter(self.segment.graph, garbage_collect_values=False)
        return interpreter.run(*(values[slot] for slot, _ in self.own)), interpreter.env

    def _plain(self, values: dict[Slot, Tensor]) -> dict[str, Tensor]:
        results, computed = self._interpreted(values)
        if not self.is_head:
            return {"hidden": results[0]}
        layer = logits_layer(self.segment)
        features: dict[str, Tensor] = {} if layer is None else {"features": computed[layer.args[0]]}  # type: ignore[index]
        return {"loss": results[0], "logits": results[1]} | features

    def _dual(self, values: dict[Slot, Tensor]) -> dict[str, Tensor]:
        moving = [slot for slot, _ in self.own if slot.role in (Role.ADAPTER, Role.STATE)]
        entering = {node: values[Slot(Role.DIRECTION, name)] for name, node in self.bottlenecks.items()}
        interpreter = DualInterpreter(self.segment.graph, self.directions, entering=entering)
        result = interpreter.run(*self._along(values, moving))[0]
        moved = self._moved(interpreter, entering)
        if not self.is_head:
            return {"hidden": result.value, "tangent": _tangent(result)} | moved
        outputs = {"loss": result.value, "jvp": _tangent(result)} | moved
        if self.kind == SCALAR:
            again = DualInterpreter(self.segment.graph, self.directions, interpreter.env)
            outputs["head_jvp"] = _tangent(again.run(*self._along(values, self._trained_head()))[0])
        return outputs

    def _in_pieces(
        self, compute: Callable[[dict[Slot, Tensor]], dict[str, Tensor]], values: dict[Slot, Tensor]
    ) -> dict[str, Tensor]:
        """Compute by parts of the batch: values stay in a processor's cache, and those of one are held at a time."""
        size, count = self.directions.batch, self.directions.count

        def part(slot: Slot, value: Tensor, start: int) -> Tensor:
            if slot.role in (Role.TANGENT, Role.DIRECTION):
                apart = value.unflatten(0, (count, self.batch))
                return aten.slice.Tensor(apart, 1, start, start + size).flatten(0, 1)
            batched = slot.role in (*_BATCHED, Role.GRADIENT)
            return aten.slice.Tensor(value, 0, start, start + size) if batched else value

        parts = [
            compute({slot: part(slot, value, start) for slot, value in values.items()})
            for start in range(0, self.batch, size)
        ]

        def whole(name: str) -> Tensor:
            each = [one[name] for one in parts]
            if name.startswith(GRADIENT):  # of weights, a sum over examples
                return total(*each)
            return torch.cat([one.unflatten(0, (-1, size)) for one in each], 1).flatten(0, 1)

        return {name: whole(name) for name in parts[0]}

    def _moved(self, interpreter: DualInterpreter, entering: Mapping[fx.Node, Tensor]) -> dict[str, Tensor]:
        """Turn directions at bottlenecks into directions of the factors' weights, [K·B, rank, in]."""
        moved: dict[str, Tensor] = {}
        for name, node in self.bottlenecks.items():
            rows = self.directions.match(interpreter.env[entering_node(node)])
            moved[MOVED + name] = torch.matmul(entering[node].transpose(1, 2), rows)
        return moved

    def _dual_with_gradients(self, values: dict[Slot, Tensor]) -> dict[str, Tensor]:
        """Compute the head's gradient back over the values of the same pass, so that nothing is computed twice."""
        with torch.enable_grad():
            head = {slot: values[slot].detach().requires_grad_() for slot in self._trained_head()}
            outputs = self._dual({**values, **head})
            gradients = torch.autograd.grad(outputs["loss"], list(head.values()), values[_EXAMPLE_WEIGHT])
        return outputs | {_gradient_name(slot): gradient for slot, gradient in zip(head, gradients, strict=True)}

    def _along(self, values: dict[Slot, Tensor], moving: Sequence[Slot]) -> list[Dual]:
        """Return the segment's inputs, those in `moving` with their tangents."""
        duals: list[Dual] = []
        for slot, _ in self.own:
            source = Slot(Role.TANGENT, "tangent") if slot.role is Role.STATE else Slot(Role.DIRECTION, slot.name)
            tangent = values.get(source) if slot in moving and slot.name not in self.bottlenecks else None
            duals.append(Dual(values[slot], tangent, slot.role in _BATCHED))
        return duals

    def _vjp(self, values: dict[Slot, Tensor]) -> dict[str, Tensor]:
        wanted = [slot for slot, _ in self.own if slot.role in (Role.HEAD, Role.ADAPTER)]
        if not (self.lowest and wanted):
            wanted = [slot for slot, _ in self.own if slot.role is Role.STATE] + wanted
        return self._gradients(values, wanted)

    def _gradients(self, values: dict[Slot, Tensor], wanted: Sequence[Slot]) -> dict[str, Tensor]:
        """Gradients of the weighted loss, or of the last state against the incoming gradient."""
        with torch.enable_grad():
            inputs = {slot: values[slot].detach().requires_grad_() for slot in wanted}
            result = self._run({**values, **inputs})[0]
            incoming = values[_EXAMPLE_WEIGHT if self.is_head else _GRADIENT]
            gradients = torch.autograd.grad(result, list(inputs.values()), incoming)
        named = {_gradient_name(slot): gradient for slot, gradient in zip(wanted, gradients, strict=True)}
        return ({"loss": result} if self.is_head else {}) | named


_GRADIENT = Slot(Role.GRADIENT, "gradient")
_EXAMPLE_WEIGHT = Slot(Role.EXAMPLE_WEIGHT, "example_weight")


def _gradient_name(slot: Slot) -> str:
    return "gradient" if slot.role is Role.STATE else GRADIENT + slot.name


def _tangent(result: Dual) -> Tensor:
    if result.tangent is None:
        raise ValueError("no tangent reaches the segment's result")
    return result.tangent
