"""Choose what goes to XNNPACK, and what is left to kernels on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import generate_partitions_from_list_of_nodes
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from torch import Tensor, fx
from torch.export import ExportedProgram


class SegmentPartitioner(XnnpackPartitioner):
    """XNNPACK's partitioner without the passes that only convolutions, pooling and fused activations need.

    The compile spec is XNNPACK's own switch: of its passes only the one that makes linears of products runs.

    Delegates are given the constants that XNNPACK packs into memory of its own: its partitioner claims the weights of
    products, and nothing else. XNNPACK goes on reading all others where they lie, and ExecuTorch before 1.5, and
    Android's build of it for longer, frees what a delegate was given once that is loaded. So they stay ExecuTorch's, as
    inputs of the delegate; the codes that an exact gradient multiplies with are stored for that once more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec("XnnpackBackend", [CompileSpec("dqlinear_partitioner", b"")])

    def partition(self, exported_program: ExportedProgram) -> Any:
        """Partition without XNNPACK's look at who calls it, which reads the sources of all callers."""
        return super(XnnpackPartitioner, self).partition(exported_program)

    def generate_partitions(self, ep: ExportedProgram) -> list[Any]:
        """Generate as few partitions as possible in each stage: values between two of them are kept in planned memory.

        XNNPACK's own grouping starts from the quantized products and leaves one partition per block.
        """
        stages: dict[int, list[list[fx.Node]]] = {}
        for group, stage in _staged(ep.graph_module.graph, self.get_matched_nodes_from_configs(ep)):
            stages.setdefault(stage, []).append(group)
        partitions: list[Any] = []
        for _, groups in sorted(stages.items()):
            partitions += generate_partitions_from_list_of_nodes(ep.graph_module, groups)
        for number, partition in enumerate(partitions):
            partition.id = number
        return partitions


_LARGE = 1 << 18
"""Numbers that one kernel outside the delegates reads before what follows is computed."""


def _staged(graph: fx.Graph, groups: list[list[fx.Node]]) -> Iterator[tuple[list[fx.Node], int]]:
    """Groups of nodes for the delegate, each with the stage that it is computed in.

    A delegate computes all that it can before it gives anything out. So of a vocabulary in parts it would give out the
    logits of all parts together, for the kernels that look up labels and likeliest entries. Where such a kernel reads
    many numbers, what comes after it in the program is therefore of the next stage.
    """
    stages: dict[fx.Node, int] = {}
    taken = {node for group in groups for node in group}
    current = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        sources = [source for source in node.all_input_nodes if source in stages]
        if node in taken:
            stages[node] = max([current, *(stages[source] + (source not in taken) for source in sources)])
            continue
        stages[node] = max((stages[source] for source in sources), default=-1)
        if any(source in taken and math.prod(_shape(source)) >= _LARGE for source in sources):
            current = max(current, stages[node] + 1)
    yield from ((group, max(stages.get(node, 0) for node in group)) for group in groups)


_PRODUCTS = ("aten.mm", "aten.bmm", "aten.linear", "aten.addmm", "aten.matmul", "aten.baddbmm", "aten.convolution")
_SLOW = ("erf", "gelu", "softmax.", "exp", "tanh", "sigmoid", "sin", "cos", "pow", "sum", "mean", "where", "expand",
         "permute", "gt.", "lt.", "le.", "ge.", "eq.", "ne.", "clamp", "maximum", "minimum", "torchao", "dequantize",
         "quantize_per")  # fmt: skip
"""Kernels without vector instructions; `native_layer_norm`, plain arithmetic and `_log_softmax` have them."""
_FAST = ("_log_softmax", "embedding")
_MANY_PRODUCTS = 1 << 18
_MANY_ELEMENTS = 1 << 15


def undelegated(program: ExportedProgram) -> Iterator[str]:
    """Large ops outside every delegate whose kernels are slow."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(getattr(node.target, "__name__", node.target))
        sizes = [_shape(node), *(_shape(source) for source in node.all_input_nodes)]
        if name.startswith(_PRODUCTS):
            if _multiplications(node) >= _MANY_PRODUCTS:
                yield f"{name} of {_described(sizes)}: products run in a portable kernel"
        elif _is_slow(name) and max(math.prod(size) for size in sizes) >= _MANY_ELEMENTS:
            yield f"{name} of {_described(sizes)}: runs in a portable kernel"


def _is_slow(name: str) -> bool:
    return any(part in name for part in _SLOW) and not any(part in name for part in _FAST)


def _multiplications(node: fx.Node) -> int:
    first = _shape(node.all_input_nodes[0])
    return math.prod(_shape(node)) * (first[-1] if first else 1)


def _shape(node: fx.Node) -> tuple[int, ...]:
    value: Any = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _described(sizes: list[tuple[int, ...]]) -> str:
    return " x ".join("[" + ", ".join(map(str, size)) + "]" for size in sizes[1:])
