"""An adapter as plain LoRA: two thin factors beside a layer's weight, whatever it was trained as.

Other adapters than LoRA and bottlenecks move what no product of thin factors can say.
"""

from __future__ import annotations

from typing import NamedTuple

from edge_client.arrays import Array
from edge_client.bundle.manifest import Manifest
from server.errors import Refusal
from server.formats.learned import Learned

PEFT_PREFIX = "base_model.model."
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_FACTORS = ".lora_A.", ".lora_B."
"""The marks of the trained parameters of adapters that are products of thin factors."""


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
    """Find the factors of each layer, by its name in the model; refused where they are not all that was trained."""
    require_factors(learned.bundle.manifest)
    config, tensors = learned.adapter.config, learned.tensors
    factors: dict[str, Factors] = {}
    for name, into in tensors.items():
        if name.endswith(_FIRST):
            layer, out = name.removesuffix(_FIRST), tensors[name.removesuffix(_FIRST) + _SECOND]
            over = len(into) ** (0.5 if config.get("use_rslora") else 1.0)
            factors[layer.removeprefix(PEFT_PREFIX)] = Factors(into, out, config["lora_alpha"] / over)
    return factors


def require_factors(manifest: Manifest) -> None:
    """Refuse what trains more than factors."""
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
    other = [name for name in trained if not any(part in name for part in _FACTORS)]
    if other:
        raise Refusal(
            409,
            "invalid",
            f"an adapter of --peft {method} {_why(other[0])}, and a GGUF adapter holds only products of thin factors: "
            "take the format peft, or merged",
        )


def _why(name: str) -> str:
    """Describe what an adapter does that has such a parameter."""
    if ".ia3_" in name:
        return "scales what goes into layers or comes out of them"
    return "moves the model's biases" if name.endswith(".bias") else "moves weights in a way of its own"
