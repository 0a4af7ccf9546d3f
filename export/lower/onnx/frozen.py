"""A frozen weight in ONNX: what every encoding of it can do, and the one that leaves it in float32."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor, fx

from export.lower.onnx.encodings import Floats
from export.lower.onnx.graph import MICROSOFT, Array, Graph, Operand, WeightFile, WeightReference

_AT_ONCE = 4_000_000
"""Weights that are dequantized at a time where a product needs them in float32: 16 MB."""


class Frozen(ABC):
    """One weight [out, in] in its file, or some of its rows."""

    def __init__(
        self,
        name: str,
        weight: Tensor,
        file: WeightFile,
        *,
        rows: bool,
        own: WeightFile,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.file = file
        self.own = own
        """The segment's file: for what another user of a tied weight may not need."""
        self.rows = rows
        """Stored as a table [out, in], else for products [in, out]."""
        self.part = (0, weight.shape[0]) if part is None else part
        """The rows meant, of a table."""
        self.out, self.columns = self.part[1] - self.part[0], weight.shape[1]

    def store(self, suffix: str, make: Callable[[], Array]) -> WeightReference:
        """Return the rows meant of what is stored whole."""
        whole = self.file.add(f"{self.name}.{suffix}", make)
        return whole.slice(*self.part) if self.rows else whole

    def array(self) -> Floats:
        return self.weight.detach().numpy()

    @classmethod
    @abstractmethod
    def rounded(cls, weight: Floats) -> Floats:
        """Return the weight as the programs see it."""

    @abstractmethod
    def linear(self, graph: Graph, x: fx.Node) -> str: ...

    def linear_before_t(self, graph: Graph, x: fx.Node) -> str:
        """Multiply where the other orientation's product comes right behind and may share what it needs."""
        return self.linear(graph, x)

    @abstractmethod
    def linear_t(self, graph: Graph, gradient: fx.Node) -> str: ...

    @abstractmethod
    def embedding(self, graph: Graph, ids: fx.Node) -> str: ...


class Float(Frozen):
    @classmethod
    def rounded(cls, weight: Floats) -> Floats:
        return weight

    def _weight(self, graph: Graph) -> str:
        if self.rows:
            return graph.external(self.store("rows", self.array))
        return graph.external(self.store("columns", lambda: self.array().T))

    def linear(self, graph: Graph, x: fx.Node) -> str:
        return product(graph, x, self._weight(graph), turned=self.rows)

    def linear_t(self, graph: Graph, gradient: fx.Node) -> str:
        return product(graph, gradient, self._weight(graph), turned=not self.rows)

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        return graph.op("Gather", self._weight(graph), ids, axis=0)


def product(graph: Graph, x: Operand, weight: str, *, turned: bool) -> str:
    """FusedMatMul reads the transposed weight where it lies; a Transpose would make a copy of it."""
    if turned:
        return graph.op("FusedMatMul", x, weight, domain=MICROSOFT, transB=1)
    return graph.op("MatMul", x, weight)


def slices(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return where a weight is cut that is dequantized piece by piece."""
    step = max(1, _AT_ONCE // columns)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def sum_of_products(graph: Graph, gradient: Operand, weights: Sequence[str], parts: Sequence[tuple[int, int]]) -> str:
    """Multiply by a weight whose rows come in slices."""
    if len(weights) == 1:
        return graph.op("MatMul", gradient, weights[0])
    sizes = graph.integers(*(stop - start for start, stop in parts))
    pieces = graph.ops("Split", gradient, sizes, outputs=len(parts), axis=-1)
    return graph.op("Sum", *(graph.op("MatMul", one, weight) for one, weight in zip(pieces, weights, strict=True)))
