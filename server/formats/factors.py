"""An adapter as plain LoRA: two thin factors beside a layer's weight, whatever it was trained as.

What is trained between or before frozen factors is folded into them already (`edge_client.bundle.adapters`); TinyLoRA's
few numbers are folded here. Other adapters move what no product of thin factors can say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import Manifest
from server.errors import Refusal
from server.formats.learned import Learned

PEFT_PREFIX = "base_model.model."
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_TINY = "tinylora_v"
_FOLDED = ".lora_A.", ".lora_B.", _TINY
"""What is trained of adapters that fold."""


class Factors(NamedTuple):
    """The change of a layer's weight: `scale * out @ into`."""

    into: Array
    """[rank, features that come in]"""
    out: Array
    """[features that go out, rank]"""
    scale: float

    @property
    def rank(self) -> int:
        return len(self.into)


def lora_factors(learned: Learned) -> dict[str, Factors]:
    """Factors by the layer's name in the model; refused where they are not all that was trained."""
    trained = require_factors(learned.bundle.manifest)
    return dict(_tiny(learned) if _TINY in trained[0] else _plain(learned))


def require_factors(manifest: Manifest) -> list[str]:
    """Refuse what trains more than factors; the names of what it trains."""
    method = manifest.adapter.method
    if manifest.head:
        layer = manifest.head[0].name.removeprefix(PEFT_PREFIX)
        raise Refusal(
            409,
            "invalid",
            f"this job trained a task layer ({layer}), and a GGUF adapter has no place for one: "
            "take the format peft, or merged",
        )
    trained = [parameter.name for unit in manifest.units for parameter in unit.parameters]
    other = [name for name in trained if not any(part in name for part in _FOLDED)]
    if other:
        raise Refusal(
            409,
            "invalid",
            f"an adapter of --peft {method} {_why(other[0])}, and a GGUF adapter is products of thin factors alone: "
            "take the format peft, or merged",
        )
    return trained


def _why(name: str) -> str:
    """What an adapter does that has such a parameter."""
    if ".ia3_" in name:
        return "scales what goes into layers or comes out of them"
    return "moves the model's biases" if name.endswith(".bias") else "moves weights in a way of its own"


def _plain(learned: Learned) -> Iterator[tuple[str, Factors]]:
    config, tensors = learned.adapter.config, learned.tensors
    for name, into in tensors.items():
        if name.endswith(_FIRST):
            layer, out = name.removesuffix(_FIRST), tensors[name.removesuffix(_FIRST) + _SECOND]
            over = len(into) ** (0.5 if config.get("use_rslora") else 1.0)
            yield layer.removeprefix(PEFT_PREFIX), Factors(into, out, config["lora_alpha"] / over)


def _tiny(learned: Learned) -> Iterator[tuple[str, Factors]]:
    """TinyLoRA's numbers, each of which moves a fixed square between the weight's own singular vectors."""
    tensors: Mapping[str, Array] = learned.tensors
    for unit in learned.bundle.manifest.units:
        layer = f"{PEFT_PREFIX}{unit.name}.tinylora"
        (numbers,) = unit.parameters
        square = np.einsum("i,ijk->jk", tensors[numbers.name], tensors[f"{layer}_P"])
        into = np.asarray(square @ tensors[f"{layer}_A"], np.float32)
        yield unit.name, Factors(into, tensors[f"{layer}_B"], 1.0)
