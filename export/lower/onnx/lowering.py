"""ONNX Runtime: one model per program, the segment's weights once in an external file that the runtime maps.

Written node by node with `onnx.helper`: 20 times faster than `torch.onnx.export`, byte for byte repeatable, and with
the weights' layout in our hands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version

import torch
from torch import Tensor

from edge_client.bundle.manifest import ProgramSpec
from edge_client.runtimes.processors import Processor
from export.graph.slots import slot_of
from export.lower.onnx.encoding import encoding_of
from export.lower.onnx.graph import WeightFile
from export.lower.onnx.linking import link
from export.lower.onnx.processors import ANYWHERE, FINE, PRODUCTS
from export.lower.onnx.translate import SegmentWeights, Translator
from export.lower.target import Lowered, Precision, ProgramEntry, Shaped
from export.model.kept import kept_blocks

__all__ = ["LOWERING", "OnnxLowering"]

_TIED = "onnx/tied"


class OnnxLowering:
    """See `export.lower.target.ForProcessors`."""

    def __init__(self, processor: Processor = ANYWHERE, *, fine: bool = False) -> None:
        self.products = FINE[PRODUCTS[processor]] if fine else PRODUCTS[processor]

    def on(self, processor: Processor, *, fine: bool = False) -> OnnxLowering:
        return OnnxLowering(processor, fine=fine)

    def lower(
        self,
        segment: str,
        programs: Sequence[Shaped],
        stored: Mapping[str, Tensor],
        precision: Precision,
        *,
        tied: Collection[str] = (),
    ) -> Lowered:
        """Lower a segment to `onnx/<segment>/`.

        `tied` names weights that one segment looks up and another multiplies by. Each gets a file of its own, the same
        whoever writes it; a model reads weights only from its own folder, so these segments share one, `onnx/tied/`.
        """
        names = {slot for shaped in programs for slot in _stored_names(shaped)} & set(tied)
        folder, prefix = (_TIED, f"{segment}.") if names else (f"onnx/{segment}", "")
        own = WeightFile(f"{prefix}weights.bin")
        shared = {name: WeightFile(f"{name}.bin") for name in sorted(names)}
        weights = SegmentWeights([shaped.program for shaped in programs], stored, precision, own, shared, self.products)
        lowered = Lowered()
        for shaped in programs:
            file = f"{folder}/{prefix}{shaped.name}.onnx"
            lowered.files[file] = Translator(shaped.program, weights).translate()
            lowered.entries[shaped.name] = ProgramEntry(file)
        for weight_file in (own, *shared.values()):
            lowered.files[f"{folder}/{weight_file.file}"] = weight_file.content()
        return lowered

    def link(self, programs: Sequence[tuple[ProgramSpec, bytes]]) -> bytes:
        """See `export.lower.target.Linking`."""
        return link(programs)

    def dequantized(self, name: str, weight: Tensor, precision: Precision, *, embedding: bool) -> Tensor:
        """`embedding` is true of a table that is only looked up: a tied table is rounded as a product's weight is."""
        if precision == "int4" and kept_blocks(weight) is not None:
            return weight.detach()
        kind = encoding_of(weight.shape, precision, embedding=embedding, products=self.products)
        return torch.from_numpy(kind.rounded(weight.detach().numpy()))

    def versions(self) -> dict[str, str]:
        return {"onnx": version("onnx")}


def _stored_names(shaped: Shaped) -> set[str]:
    return {slot_of(node).name for node in shaped.program.stored}


LOWERING = OnnxLowering()
