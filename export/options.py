"""Define the options of an export, checked before any work starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from edge_client.bundle.manifest import DEFAULT_TASK, PRECISIONS, TASKS, Precision
from edge_client.checkpoints import local_model, require_hub
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.keys import read_secret
from edge_client.runtimes.processors import PROCESSORS, Processor
from edge_client.runtimes.runtime import RUNTIMES
from edge_client.tasks.registry import task_named
from export.adapt.adapter import check_adapter
from export.errors import ExportError
from export.values import known, listed, positive

Verify = Literal["auto", "full", "none"]
VERIFY: tuple[Verify, ...] = get_args(Verify)
_DIRECTIONS = 20


@dataclass(frozen=True)
class ExportOptions:
    """One export."""

    source: str
    """A folder, a GGUF file, `package:NAME`, or a name on the hub."""
    out: Path
    task: str = DEFAULT_TASK
    labels: tuple[str, ...] = ("0", "1")
    adapter: AdapterOptions = field(default_factory=AdapterOptions)
    precision: Precision = "none"
    runtimes: tuple[str, ...] = ("onnx",)
    processor: Processor | Literal["auto"] = "auto"
    """The processor that int8 products are made for; auto: this machine's."""
    batches: tuple[int, ...] = (8,)
    lengths: tuple[int, ...] = (64,)
    directions: tuple[int, ...] = (1,)
    generate: int = 0
    """Tokens of prompt and answer that generation holds; 0: no programs for it."""
    cuts: int | None = None
    """The most segments between embedding and head; None: one for each block."""
    seed: int = 0
    random_weights: bool = False
    low_memory: bool | None = None
    """True if weights stay in files and few blocks are verified; None: where the memory is short."""
    allow_fallback: bool = False
    verify: Verify = "auto"
    """The verification of every program against the model: in as few passes as its bounds need, all blocks in many, or
    none.
    """
    measure: bool = True
    """True if each program's memory is measured."""
    cache: Path | None = None
    workers: int = 0
    """Processes that lower segments; 0: as many as cores and memory allow."""
    overwrite: bool = False
    sign: Path | None = None
    """The file of the key that vouches for the bundle."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapter", self.adapter.of_task(self.task))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple((batch, length) for length in self.lengths for batch in self.batches)

    @property
    def most_directions(self) -> int:
        """Random directions that a runtime is verified with at most; 0: it is not verified."""
        return 0 if self.verify == "none" else _DIRECTIONS

    def check(self) -> None:
        """Refuse what cannot work, each with what was expected and what came."""
        if self.sign is not None:
            read_secret(self.sign)
        known("task", [self.task], TASKS)
        check_adapter(self.adapter)
        known("target", self.runtimes, RUNTIMES)
        known("quantization", [self.precision], PRECISIONS)
        known("processor", [self.processor], ("auto", *PROCESSORS))
        positive("batch", self.batches)
        positive("directions", self.directions)
        if self.cuts is not None:
            positive("cuts", [self.cuts])
        self._check_generation()
        known("verification", [self.verify], VERIFY)
        if min(self.lengths, default=0) < 2:
            raise ExportError(f"a sequence needs at least 2 tokens, got --seq {listed(self.lengths)}")
        if task_named(self.task).has_classes and len(self.labels) < 2:
            raise ExportError(f"a classifier needs at least 2 labels, got {listed(self.labels)}")
        if len(set(self.labels)) != len(self.labels):
            raise ExportError(f"labels must differ from each other, got {listed(self.labels)}")
        if self.low_memory and self.random_weights:
            raise ExportError(
                "--low-memory maps weights from files, and --random-weights has none: leave one of them out"
            )
        self._check_out()
        if local_model(self.source) is None:
            require_hub(self.source)

    def _check_generation(self) -> None:
        if self.generate and self.task != "causal-lm":
            raise ExportError(f"--generate is for the task causal-lm, got {self.task}: leave it out, or change --task")
        if self.generate < 0 or self.generate == 1:
            raise ExportError(f"--generate takes 2 tokens or more, or 0 for no generation, got {self.generate}")

    def _check_out(self) -> None:
        place = next(parent for parent in self.out.absolute().parents if parent.exists())
        if not place.is_dir():
            raise ExportError(f"{place} is a file, so no bundle can be written below it; choose another --out")
        if not os.access(place, os.W_OK):
            raise ExportError(f"{place} cannot be written to; choose another --out")
        if self.out.exists() and not self.overwrite:
            raise ExportError(f"{self.out} exists; choose another --out or pass --overwrite to replace it")
        if self.out.exists() and not (self.out / "manifest.json").is_file():
            raise ExportError(f"{self.out} is not a bundle, so --overwrite will not replace it; choose another --out")


def parse_labels(text: str) -> tuple[str, ...]:
    """`3` means three unnamed classes; else names between commas, or a JSON list where names have commas themselves."""
    if text.strip().isdecimal():
        return tuple(str(i) for i in range(int(text)))
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=tuple[str, ...])
        except msgspec.DecodeError as error:
            raise ExportError(f"--labels is no JSON list of names: {error}; give names between commas") from None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse whole numbers between commas; `option` names them in errors."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ExportError(f"{option} takes whole numbers between commas, got {text!r}") from None
