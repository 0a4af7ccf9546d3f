"""Weights that stay in files: the system reads what is used, and drops it again where memory is short.

safetensors maps what it loads, and transformers takes it as it is where nothing has to be converted: a checkpoint in
float32 costs no memory. One in half precision is widened to a copy of it, tensor by tensor. What is mapped counts as
this process's all the same as long as it was read, so that `let_go` gives it back between one use and the next.
"""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from export.errors import ExportError

_FLOAT = "F32"
_SUFFIX = ".safetensors"
_CONFIG = "config.json"
_MAPS = Path("/proc/self/maps")
_PAGE = 4096
LARGE = 200_000_000
"""Bytes of a model in float32 whose weights stay in files while it is exported or simulated."""
_WORTH_A_FILE = 1_000_000
"""Bytes of a weight that is mapped."""
_NOT_NEEDED = 4
"""madvise's MADV_DONTNEED: of a mapped file's pages that nobody wrote to, the next use reads them again."""


def fits_memory(needed: int) -> bool:
    """Tell whether weights in float32 take less than half of the memory that is free: verification takes as much."""
    return 2 * needed < psutil.virtual_memory().available


def float_bytes(folder: Path) -> int:
    """Count the bytes of a checkpoint's weights in float32; 0 where they are not in safetensors."""
    return sum(4 * elements for _, _, _, elements in _entries(folder))


def largest_float_bytes(folder: Path) -> int:
    """Count the bytes of a checkpoint's largest weight in float32."""
    return max((4 * elements for _, _, _, elements in _entries(folder)), default=0)


def widened_bytes(folder: Path) -> int:
    """Count the bytes of the copy of a checkpoint; 0 where none is needed."""
    return 0 if _is_float(folder) else float_bytes(folder)


def widened(folder: Path, copy: Path) -> Path:
    """Map a checkpoint's weights as they are, or a copy in float32, a file for each tensor."""
    names = [name for _, name, _, _ in _entries(folder)]
    if not names:
        raise ExportError(
            f"--low-memory maps weights from safetensors, and {folder} has none: save the model again with "
            "save_pretrained, or leave --low-memory out"
        )
    if _is_float(folder):
        return folder
    shutil.copyfile(folder / _CONFIG, copy / _CONFIG)
    scratch, places = Scratch(copy), {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with safe_open(path, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- it is no dictionary
                tensor = opened.get_tensor(name)
                places[name] = scratch.write(name, tensor.float() if tensor.is_floating_point() else tensor)
                let_go([tensor])
    total = sum((copy / file).stat().st_size for file in places.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    return copy


class Scratch:
    """Tensors in files of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def write(self, name: str, tensor: Tensor) -> str:
        """Write a tensor and return its file's name."""
        self._count += 1
        file = f"{self._count:05}{_SUFFIX}"
        try:
            save_file({name: tensor.contiguous()}, self.folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise ExportError(f"{self.folder} cannot be written to: {error}; free some space, or move --out") from None
        return file

    def moved(self, tensor: Tensor) -> Tensor:
        """Return the same tensor, mapped; its file is deleted when nobody uses it any more."""
        path = self.folder / self.write("tensor", tensor)
        with safe_open(path, "pt") as opened:
            mapped: Tensor = opened.get_tensor("tensor")
        path.unlink()
        return mapped


def move_to_files(model: nn.Module, scratch: Scratch) -> None:
    """Map the large weights of a model that are not mapped yet."""
    places = list(_mapped_files())
    for parameter in model.parameters():
        if parameter.nbytes >= _WORTH_A_FILE and not _lies_in(parameter, places):
            parameter.data = scratch.moved(parameter.data)


def let_go(tensors: Iterable[Tensor]) -> None:
    """Give back the memory of those that are mapped; they stay what they are."""
    if not _MAPS.exists():
        return
    places, libc = list(_mapped_files()), ctypes.CDLL(None)
    for tensor in tensors:
        with suppress(RuntimeError):  # what stands for a tensor while something is traced has no address
            if _lies_in(tensor, places):
                begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
                begin, end = -(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE  # pages that are wholly its own
                if begin < end:
                    libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _NOT_NEEDED)


def let_go_behind(modules: Iterable[nn.Module]) -> None:
    """Make each of these modules release its weights when it has run, from now on, and when gradients went back."""

    def give_back(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], _: object) -> None:
        weights = list(module.parameters())
        let_go(weights)
        for value in (*given, *named.values()):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(lambda _gradient: let_go(weights))

    for module in modules:
        module.register_forward_hook(give_back, with_kwargs=True)


def _lies_in(tensor: Tensor, places: Iterable[tuple[int, int]]) -> bool:
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    return any(start <= begin and end <= stop for start, stop in places)


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Yield the ranges of tensors' files in this process's memory."""
    if not _MAPS.exists():
        return
    for line in _MAPS.read_text().splitlines():
        if _SUFFIX in line:
            start, _, stop = line.split(maxsplit=1)[0].partition("-")
            yield int(start, 16), int(stop, 16)


def _is_float(folder: Path) -> bool:
    return all(kind == _FLOAT or not kind.startswith(("F", "BF")) for _, _, kind, _ in _entries(folder))


def _entries(folder: Path) -> Iterator[tuple[Path, str, str, int]]:
    """File, name, kind of number and how many, of each tensor, from the files' headers alone."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                yield path, name, entry["dtype"], torch.Size(entry["shape"]).numel()
