"""A bundle's architecture in a stock runtime's own file, as a worker process of `export.check.baselines`.

As the runtimes' guides tell their users: `torch.onnx.export` and `quantize_dynamic`; `torch.export`, the XNNPACK
quantizer and partitioner. What it returns is the logits.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.traceback import NodeSource

from edge_client.bundle.folder import Bundle
from edge_client.commands.bench.figures import STOCK_EXECUTORCH, STOCK_FP32, STOCK_INT8, STOCK_ONNX
from export.check.eager import tokens_of, unadapted
from export.check.stock import file_of
from export.tasks.registry import MODEL_TASKS

Tensors = tuple[Tensor, ...]
_source: Any = NodeSource
_source.__deepcopy__ = lambda self, _memo: self  # nobody reads what a node was made from; copies grow with each pass


class Logits(nn.Module):
    """A model of transformers from its inputs, in their order, to logits."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.model = unadapted(bundle, "sdpa")
        self.task = MODEL_TASKS[bundle.manifest.model.task]
        self.names = bundle.manifest.inputs

    def forward(self, *tokens: Tensor) -> Tensor:
        return self.task.logits(self.model(**dict(zip(self.names, tokens, strict=True))))


def _onnx(model: nn.Module, tokens: Tensors, folder: Path) -> None:
    from onnxruntime import quantization

    library: Any = quantization
    floats, integers = (file_of(folder, STOCK_ONNX, step) for step in (STOCK_FP32, STOCK_INT8))
    torch.onnx.export(model, tokens, str(floats), dynamo=True, verbose=False)
    library.quantize_dynamic(floats, integers, per_channel=True)


def _executorch(model: nn.Module, tokens: Tensors, folder: Path) -> None:
    from executorch.backends.xnnpack.partition import xnnpack_partitioner

    library: Any = xnnpack_partitioner
    floats, integers = library.XnnpackPartitioner, library.XnnpackDynamicallyQuantizedPartitioner
    _write_pte(model, tokens, file_of(folder, STOCK_EXECUTORCH, STOCK_FP32), [floats()])
    _write_pte(_quantized(model, tokens), tokens, file_of(folder, STOCK_EXECUTORCH, STOCK_INT8), [integers(), floats()])


def _quantized(model: nn.Module, tokens: Tensors) -> nn.Module:
    """Quantize all linear layers: asked for all layers, the quantizer makes floats of indices."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
    from torchao.quantization.pt2e import quantize_pt2e

    library: Any = xnnpack_quantizer
    torchao: Any = quantize_pt2e
    settings = library.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    quantizer = library.XNNPACKQuantizer().set_module_type(nn.Linear, settings)
    quantizer.transform_for_annotation = lambda graph: graph
    prepared = torchao.prepare_pt2e(torch.export.export(model, tokens, strict=False).module(), quantizer)
    prepared(*tokens)
    quantized: nn.Module = torchao.convert_pt2e(prepared)
    return quantized


def _write_pte(model: nn.Module, tokens: Tensors, file: Path, partitioners: list[Any]) -> None:
    from executorch import exir

    library: Any = exir
    program = torch.export.export(model, tokens, strict=False)
    lowered = library.to_edge_transform_and_lower(program, partitioner=partitioners)
    file.write_bytes(lowered.to_executorch().buffer)


_EXPORTS: dict[str, Callable[[nn.Module, Tensors, Path], None]] = {
    STOCK_ONNX: _onnx,
    STOCK_EXECUTORCH: _executorch,
}


def main(runtime: str, source: str, folder: str, batch: str, length: str) -> None:
    """Write both precisions, floats first, so that they are there where integers fail."""
    bundle = Bundle.open(Path(source), verify=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokens = tokens_of(bundle.manifest, int(batch), int(length))
        _EXPORTS[runtime](Logits(bundle).eval(), tokens, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
