"""A model and its adapter in a manifest's words, before there are programs."""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from edge_client import __version__
from edge_client.bundle import manifest as m
from export.adapt.adapted import Adapted
from export.graph.segments import SegmentGraph
from export.graph.slots import slot_of
from export.graph.units import bias_of, find_head, find_units, logits_layer
from export.model.loading import Loaded
from export.write import pack


class Structure(NamedTuple):
    """The structure of a model with its adapter, whatever its weights."""

    units: tuple[m.Unit, ...]
    head: tuple[m.Parameter, ...]
    segments: tuple[m.Segment, ...]
    logits: tuple[str, str] | None
    """Weight and bias of the layer that gives them, if it is the head's; without a bias the latter is empty."""


def structure_of(segments: list[SegmentGraph]) -> Structure:
    chain = tuple(m.Segment(s.name, s.blocks.start, s.blocks.stop, s.one_token) for s in segments)
    return Structure(tuple(find_units(segments)), tuple(find_head(segments)), chain, _logits(segments[-1]))


def describe(loaded: Loaded, adapted: Adapted, structure: Structure, method: str) -> m.Manifest:
    """Describe a captured model: units, head and the chain of segments; no shapes, no files."""
    entrances = {unit.tangents for unit in structure.units}
    return m.Manifest(
        schema=m.SCHEMA if "bottleneck" in entrances else m.FIRST_SCHEMA,
        made_by=f"spry {__version__}",
        model=m.ModelSpec(
            name=loaded.name,
            architecture=type(loaded.model).__name__,
            task=loaded.task.name,  # type: ignore[arg-type]
            labels=loaded.labels if loaded.task.kind.has_classes else (),
            blocks=loaded.layers,
            parameters=loaded.parameters,
            vocabulary=loaded.vocabulary,
        ),
        adapter=m.AdapterSpec(
            method,
            pack.plain(adapted.config),  # type: ignore[arg-type]
            pack.ADAPTER_FILE,
        ),
        inputs=loaded.inputs,
        units=structure.units,
        head=structure.head,
        segments=structure.segments,
        shapes=(),
        directions=(),
        tokenizer=None,
        pad_token_id=loaded.pad_token_id,
        runtimes={},
        verification=(),
        files=(),
        features=_features(adapted, structure),
    )


def _logits(head: SegmentGraph) -> tuple[str, str] | None:
    layer = logits_layer(head)
    if layer is None:
        return None
    weight: fx.Node = layer.args[1]  # type: ignore[assignment]
    bias = bias_of(layer)
    return slot_of(weight).name, "" if bias is None else slot_of(bias).name


def _features(adapted: Adapted, structure: Structure) -> m.FeatureSpec | None:
    if structure.logits is None or adapted.feature_square is None:
        return None
    return m.FeatureSpec(*structure.logits, adapted.feature_square)
