"""A LoRA adapter as llama.cpp loads it (`--lora`), and with it whatever is built on llama.cpp."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.folder import Bundle
from edge_client.data.templates import Template
from edge_client.errors import RuntimeMissing
from server.errors import Refusal
from server.formats.factors import Factors, lora_factors, require_factors
from server.formats.learned import Learned, config_of
from server.formats.ollama import modelfile

if TYPE_CHECKING:
    from gguf import GGUFWriter, TensorNameMap

ADAPTER, BASE = "adapter.gguf", "base.gguf"
"""The base model's file is its owner's to make: llama.cpp has a converter."""


class Architecture(NamedTuple):
    """The name of a kind of model in llama.cpp, and the layout of its attention."""

    name: str
    pairs: bool = False
    """True if positions rotate neighbouring features, where transformers rotates those half a head apart."""


ARCHITECTURES = {
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2"),
    "gemma3_text": Architecture("gemma3"),
    "gpt2": Architecture("gpt2"),
    "llama": Architecture("llama", pairs=True),
    "mistral": Architecture("llama", pairs=True),
    "phi3": Architecture("phi3"),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
}
"""The architectures, by transformers' `model_type`."""


def gguf_files(learned: Learned) -> Mapping[str, bytes]:
    """Return the adapter, and the Modelfile with which Ollama puts it on its base."""
    template = Template.of(learned.bundle)
    return {
        ADAPTER: gguf_adapter(learned),
        "Modelfile": modelfile(f"./{BASE}", f"./{ADAPTER}", template, base=learned.model.name).encode(),
    }


def require_gguf(bundle: Bundle) -> None:
    """Refuse a bundle whose jobs make no GGUF adapter, whatever they learn, and a machine that writes none."""
    if find_spec("gguf") is None:
        raise RuntimeMissing("the format gguf", "gguf", "it is not installed")
    require_factors(bundle.manifest)
    _architecture(config_of(bundle))


def gguf_adapter(learned: Learned) -> bytes:
    """Return the bytes of the file."""
    factors = lora_factors(learned)
    architecture = _architecture(learned.model_config)
    try:
        import gguf
    except ImportError as error:
        raise RuntimeMissing("the format gguf", "gguf", str(error)) from None
    known = gguf.get_tensor_name_map(number_of(gguf, architecture.name), learned.model.blocks)
    alpha = max(one.scale * one.rank for one in factors.values())
    with tempfile.TemporaryDirectory(prefix="spry-gguf-") as folder:
        path = Path(folder) / ADAPTER
        writer = gguf.GGUFWriter(path, architecture.name)
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_name(f"{learned.version.job}, version {learned.version.number}")
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
        for layer, one in factors.items():
            _add(writer, _called(known, layer), _laid_out(learned, architecture, layer, one), alpha)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _architecture(config: Mapping[str, Any]) -> Architecture:
    kind = config["model_type"]
    if kind not in ARCHITECTURES:
        raise Refusal(
            409, "invalid",
            f"GGUF adapters are made for {', '.join(ARCHITECTURES)}, and this job's model is a {kind}: take the format "
            "merged, and llama.cpp's converter for the whole model",
        )  # fmt: skip
    return ARCHITECTURES[kind]


def number_of(gguf: Any, name: str) -> Any:
    """Return the number of an architecture, by its name."""
    return next(number for number, of in gguf.MODEL_ARCH_NAMES.items() if of == name)


def _called(known: TensorNameMap, layer: str) -> str:
    name = known.get_name(f"{layer}.weight", try_suffixes=(".weight",))
    if name is None:
        raise Refusal(409, "invalid", f"llama.cpp has no name for the layer {layer}: take the format merged")
    return name


def _add(writer: GGUFWriter, name: str, factors: Factors, alpha: float) -> None:
    """Add a parameter's factors; the reader scales by alpha over rank, and the second factor takes any difference."""
    own = factors.scale * factors.rank / alpha
    writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(factors.into, np.float32))
    writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(factors.out * np.float32(own), np.float32))


def _laid_out(learned: Learned, architecture: Architecture, layer: str, factors: Factors) -> Factors:
    """Queries and keys in the order in which llama.cpp has this architecture's."""
    kind, config = layer.rpartition(".")[2], learned.model_config
    if not architecture.pairs or kind not in ("q_proj", "k_proj"):
        return factors
    heads = config["num_attention_heads"]
    if kind == "k_proj":
        heads = config.get("num_key_value_heads") or heads
    return factors._replace(out=neighbours(factors.out, heads))


def neighbours(rows: Array, heads: int) -> Array:
    """Reorder the rows of each head so that those half a head apart become neighbours."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
