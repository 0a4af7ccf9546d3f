"""A GGUF file as the checkpoint that transformers would have: configuration, weights, tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from edge_client.errors import RuntimeMissing
from edge_client.gguf.header import SUFFIX, BadGguf, GgufHeader, TensorInfo
from edge_client.gguf.tokens import GgufWords
from export.model.gguf.blocks import FORMS, GgufBlocks
from export.model.gguf.families import FAMILIES, Family, llama3_positions

_FREQUENCIES = "rope_freqs.weight"
_OUTPUT = "output.weight"
_TABLE = "token_embd.weight"


class GgufCheckpoint:
    """One file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, GgufHeader(path)
        if self.header.architecture not in FAMILIES:
            raise BadGguf(
                f"{path} is a model of the architecture {self.header.architecture}; known are {', '.join(FAMILIES)}"
            )
        if self.header.of("expert_count", 0):
            raise BadGguf(f"{path} is a mixture of experts, which is not known here")
        self.family: Family = FAMILIES[self.header.architecture]
        self.words = GgufWords(self.header)
        for tensor in self.header.tensors.values():
            _check(path, tensor, self.header.bytes)

    @property
    def name(self) -> str:
        """Give the name that people call it."""
        named = self.header.settings.get("general.name")
        return named if self.path.suffix != SUFFIX and isinstance(named, str) else self.path.name

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.header.tensors.values())

    @cached_property
    def _fields(self) -> dict[str, Any]:
        fields = self.family.fields(self.header)
        if _FREQUENCIES in self.header.tensors:
            slower = self.numbers(self.header.tensors[_FREQUENCIES])
            rope = llama3_positions(self.header, slower, fields["rope_parameters"], fields["head_dim"])
            fields["rope_parameters"] = rope
        return fields

    def config(self) -> Any:
        """Transformers' configuration."""
        special = {f"{name.removesuffix('_token')}_token_id": at for name, at in self.words.special.items()}
        return AutoConfig.for_model(
            self.family.model_type,
            **self._fields,
            **{name: at for name, at in special.items() if name != "unk_token_id"},
            vocab_size=self._table.shape[0],
            tie_word_embeddings=_OUTPUT not in self.header.tensors,
        )

    @property
    def _table(self) -> TensorInfo:
        if _TABLE not in self.header.tensors:
            raise BadGguf(f"{self.path} holds no token_embd.weight: no whole language model; take another copy of it")
        return self.header.tensors[_TABLE]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The file's tensors by transformers' names."""
        import gguf

        config = self.config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == self.header.architecture)
        known = gguf.get_tensor_name_map(number, config.num_hidden_layers)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            shapes.pop("lm_head.weight")
        named = {name: known.get_name(name, try_suffixes=(".weight", ".bias")) or "" for name in shapes}
        self._refuse_others(named)
        for name, called in named.items():
            self._check_shape(name, called, shapes[name])
        return named

    def _refuse_others(self, named: Mapping[str, str]) -> None:
        missing = [called or name for name, called in named.items() if called not in self.header.tensors]
        unknown = sorted(self.header.tensors.keys() - set(named.values()) - {_FREQUENCIES})
        if missing:
            raise BadGguf(f"{self.path} lacks tensors ({_some(missing)}); take another copy of the model")
        if unknown:
            raise BadGguf(
                f"{self.path} has tensors that no {self.header.architecture} has here ({_some(unknown)}); "
                "give another model"
            )

    def _check_shape(self, name: str, called: str, shape: tuple[int, ...]) -> None:
        has = self.header.tensors[called].shape
        expected = shape[::-1] if self._is_turned(name) else shape
        if has != expected:
            raise BadGguf(f"{self.path}: {called} is {has} instead of {expected}; take another copy of the model")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each weight in float32, as transformers has it."""
        for name, called in self.names.items():
            value = self.laid_out(name, self.numbers(self.header.tensors[called]))
            yield name, torch.from_numpy(np.require(value, requirements=["C", "W"]))

    def laid_out(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a weight, or anything that has its rows, as transformers keeps it under this name."""
        layer = name.split(".")[-2]
        if self.family.from_one and layer.endswith("norm"):
            return rows - 1
        if self._is_turned(name):
            return rows.T
        heads = self._turned_heads(name)
        return rows if heads is None else rows[half_apart(len(rows), heads)]

    def kept(self, model: nn.Module) -> dict[nn.Parameter, GgufBlocks]:
        """Blocks that stay as they are, by the model's weights that are made of them."""
        found: dict[nn.Parameter, GgufBlocks] = {}
        parameters = dict(model.named_parameters())
        for name, called in self.names.items():
            tensor = self.header.tensors[called]
            if (form := _form(tensor)) in FORMS and name in parameters and not self._is_turned(name):
                heads, order = self._turned_heads(name), None
                if heads is not None:
                    order = half_apart(tensor.shape[0], heads)
                found[parameters[name]] = GgufBlocks(self.raw(tensor), form, order)
        return found

    def _turned_heads(self, name: str) -> int | None:
        """Return how many heads a weight's rows are of, where they are in another order."""
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        return self._fields[heads] if self.family.pairs and heads is not None else None

    def _is_turned(self, name: str) -> bool:
        *_, layer, part = name.split(".")
        return layer in self.family.turned and part == "weight"

    def numbers(self, tensor: TensorInfo) -> np.ndarray:
        """Return a tensor in float32."""
        import gguf

        kind = gguf.GGMLQuantizationType(tensor.kind)
        return np.asarray(gguf.quants.dequantize(self.raw(tensor), kind), np.float32).reshape(tensor.shape)

    def raw(self, tensor: TensorInfo) -> np.ndarray:
        """Return a tensor's bytes as they are in the file, row by row."""
        size = _bytes(tensor)
        mapped = np.memmap(self.path, np.uint8, "r", tensor.offset, (size,))
        return mapped.reshape(*tensor.shape[:-1], -1)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        special = {name: self.words.words[at] for name, at in self.words.special.items()}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=self.words.tokenizer(), **special)
        tokenizer.chat_template = self.words.template.source or None
        return tokenizer

    def write(self, folder: Path) -> Path:
        """Write a folder whose weights can be mapped, a file for each tensor."""
        from export.model.mapped import Scratch

        scratch = Scratch(folder)
        places = {name: scratch.write(name, tensor) for name, tensor in self.weights()}
        self.config().save_pretrained(folder)
        total = sum((folder / file).stat().st_size for file in places.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def half_apart(rows: int, heads: int) -> np.ndarray:
    """Return the order that puts features half a head apart which are neighbours in each of so many heads."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _form(tensor: TensorInfo) -> str:
    import gguf

    return gguf.GGMLQuantizationType(tensor.kind).name


def _bytes(tensor: TensorInfo) -> int:
    """Size a tensor as the file holds it."""
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
    return math.prod(tensor.shape) // block * size


def _check(path: Path, tensor: TensorInfo, there: int) -> None:
    """Check that a tensor's numbers can be read, and are all in the file."""
    try:
        import gguf
    except ImportError as error:
        raise RuntimeMissing("a GGUF file", "gguf", str(error)) from None
    plain = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16
    known = {*gguf.quants._type_traits, *plain}  # pyright: ignore[reportPrivateUsage]
    if tensor.kind not in {int(kind) for kind in known}:
        kinds = ", ".join(sorted(kind.name for kind in known))
        raise BadGguf(
            f"{path}: {tensor.name} is quantized in the way {tensor.kind}, which is not known; known are {kinds}"
        )
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
    if tensor.shape[-1] % block or not tensor.elements:
        raise BadGguf(
            f"{path} is damaged: {tensor.name} is {tensor.shape}, in blocks of {block}; take another copy of it"
        )
    if tensor.offset + _bytes(tensor) > there:
        raise BadGguf(
            f"{path} is cut off: it has {there:,} bytes and {tensor.name} lies behind them; take another copy of it"
        )
