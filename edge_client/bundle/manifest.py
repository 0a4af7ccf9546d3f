"""Define the manifest of a bundle, ``manifest.json``, read by devices, the exporter and the server.

Everything a client must know before it loads a program stands here: units and their parameters, the chain of segments,
each runtime's programs with their inputs and outputs in order, what a program costs, and how well it was verified.
Fields may be added without a new schema, and readers ignore those they do not know; the schema's number rises when an
older reader would misunderstand the file. Schema 2 has units whose tangents enter at a bottleneck; a bundle without
such units has schema 1, which older readers know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from edge_client.errors import BundleError

FIRST_SCHEMA, SCHEMA = 1, 2
"""The oldest schema, for manifests that need nothing new of their readers, and the newest that is read here."""
FILE_NAME = "manifest.json"
LARGEST = 64 << 20
"""Bytes; no manifest has more."""

Precision = Literal["none", "int8", "int4"]
ProgramKind = Literal["plain", "enter", "dual", "scalar", "vjp", "prefill", "decode"]
PLAIN: Final = "plain"
ENTER: Final = "enter"
DUAL: Final = "dual"
SCALAR: Final = "scalar"
VJP: Final = "vjp"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
TaskName = Literal["seq-cls", "qa", "causal-lm"]
"""The tasks of `edge_client.tasks.registry`, as manifests name them."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
KINDS: tuple[ProgramKind, ...] = get_args(ProgramKind)
TASKS: tuple[TaskName, ...] = get_args(TaskName)
DEFAULT_TASK: TaskName = "seq-cls"

EMBED, HEAD = "embed", "head"
"""The first and the last segment of every chain; between them `block.0`, `block.1`, …"""

Entrance = Literal["weights", "bottleneck"]
"""The point where a unit's tangents enter: along its weights, or after its first factor, at few numbers of a token."""

IGNORED = -100
"""Label of a token or span that does not count, as in Hugging Face."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A part of the manifest."""


class TensorSpec(_Record, frozen=True):
    """An input or output of a program; dtypes are numpy's names."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ProgramSpec(_Record, frozen=True):
    """One program of one segment at one shape, inputs and outputs in the order the file wants them."""

    segment: str
    kind: ProgramKind
    batch: int
    length: int
    directions: int
    """K; 0 where the program carries no tangents."""
    file: str
    method: str
    """The method of a file that holds several programs; empty where it holds one."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int
    load_bytes: int
    """Memory that loading the program takes, measured."""
    peak_bytes: int
    """Highest memory above that while it runs, measured."""

    @property
    def name(self) -> str:
        directions = f", K={self.directions}" if self.directions else ""
        return f"{self.segment}.{self.kind} [{self.batch}x{self.length}{directions}]"


class FileSpec(_Record, frozen=True):
    """A file of the bundle, its path relative to the bundle's folder, with forward slashes."""

    path: str
    sha256: str
    bytes: int


class Parameter(_Record, frozen=True):
    """A trainable tensor under its name in a PEFT adapter file."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Unit(_Record, frozen=True, omit_defaults=True):
    """Weights that are assigned to clients as a whole: a LoRA pair, an IA3 vector, a bias. Numbered by position."""

    name: str
    segments: tuple[str, ...]
    """The segments that use it, in order; a block whose weights are shared is used many times."""
    parameters: tuple[Parameter, ...]
    tangents: Entrance = "weights"
    token: int | None = None
    """The only token that a bottleneck sees, where the model reads no other's result."""

    @property
    def size(self) -> int:
        return sum(parameter.size for parameter in self.parameters)

    def tangents_of(self, length: int) -> tuple[Parameter, ...]:
        """Describe a direction in texts of so many tokens: of the weights, or of each token's few numbers."""
        if self.tangents == "weights":
            return self.parameters
        tokens = length if self.token is None else 1
        return tuple(Parameter(parameter.name, (tokens, parameter.shape[0])) for parameter in self.parameters)


class Segment(_Record, frozen=True, omit_defaults=True):
    """A link of the chain: the blocks from `first_block` up to, not including, `last_block`."""

    name: str
    first_block: int
    last_block: int
    one_token: bool = False
    """True if it computes its result for one token alone, since nothing behind it reads another's."""


class OutputSummary(_Record, frozen=True):
    """An output in a few numbers."""

    size: float
    """The root of its mean square."""
    samples: tuple[float, ...]
    """Some of it, from the first to the last at equal distances."""


class Trial(_Record, frozen=True):
    """A program's results on inputs that a seed gives; `edge_client.runtimes.trials` says which."""

    program: str
    """The program's name."""
    bound: float
    """The bound of an output's error elsewhere, relative to its size."""
    outcomes: tuple[OutputSummary, ...]
    """The summary of each output."""


class RuntimeSpec(_Record, frozen=True):
    """The programs of a bundle for one runtime."""

    precision: Precision
    versions: dict[str, str]
    """Versions of the libraries that wrote the files."""
    programs: tuple[ProgramSpec, ...]
    weights_bytes: int
    files: tuple[str, ...] = ()
    """The files that its programs share: weights used by several."""
    trials: tuple[Trial, ...] = ()
    """The trials by which a device checks that its runtime computes as the exporter's did."""
    processor: str = ""
    """The processor that int8 products are made for (`edge_client.runtimes.processors`); empty if they suit all."""
    generation: tuple[ProgramSpec, ...] = ()
    """`prefill` and `decode` of each segment; apart from the others, since readers that know no generation pass them
    by."""

    @property
    def all_programs(self) -> tuple[ProgramSpec, ...]:
        return self.programs + self.generation


class ModelSpec(_Record, frozen=True):
    """The base model."""

    name: str
    architecture: str
    task: TaskName
    labels: tuple[str, ...]
    blocks: int
    parameters: int
    vocabulary: int = 0
    """Tokens that it knows; of a language model, which labels there are."""


class AdapterSpec(_Record, frozen=True):
    """The adapter of the model, in PEFT's terms."""

    method: str
    config: dict[str, Any]
    """PEFT's adapter_config.json."""
    file: str
    """The adapter's and head's values before training: safetensors under PEFT's keys."""


class FeatureSpec(_Record, frozen=True):
    """The features that a model hands to the linear layer of its logits: the head's plain program tells them."""

    weight: str
    """The layer's, among the head's parameters."""
    bias: str
    """Empty where it has none."""
    square: float
    """The mean of the features' squared length, for sentences that the exporter has."""


class GenerationSpec(_Record, frozen=True):
    """The room of the programs that generate."""

    length: int
    """Tokens of prompt and answer together."""
    chunk: int
    """A prompt's tokens at a time."""
    ends: tuple[int, ...]
    """The tokens by which the model ends a text."""


class ThoughtsSpec(_Record, frozen=True):
    """The form of thoughts in a chat template, which are between two words at an answer's beginning."""

    opens: str
    closes: str
    strips: str = ""
    """The characters that an answer and its thoughts lose where they meet these words."""
    around: tuple[str, str] | None = None
    """The text around the thoughts, even empty ones, of an answer that ends the conversation.

    Those of earlier answers are hidden; None: all are.
    """


class TurnsSpec(_Record, frozen=True):
    """A chat template that writes fixed words around messages; `edge_client.data.turns`."""

    between: dict[str, dict[str, str]]
    """The text between a message of one role and of another; "" is where a conversation begins, and its end."""
    asking: str
    """The text after the user's last message where an answer is asked for."""
    trimmed: tuple[str, ...] = ()
    """The roles whose messages lose white space around."""
    answers: tuple[str, str] | None = None
    """The text that is learnt before an answer's own words, and after them; None where that is not always the same."""
    thoughts: ThoughtsSpec | None = None
    """The form of thoughts; None where answers are written as they are."""


class Check(_Record, frozen=True):
    """One line of the verification report."""

    runtime: str
    precision: Precision
    what: str
    value: float
    bound: float | None
    """The value that must not be passed; None where the value is only reported."""
    passed: bool


class Manifest(_Record, frozen=True, kw_only=True):
    """A bundle's contents."""

    schema: int = FIRST_SCHEMA
    made_by: str
    model: ModelSpec
    adapter: AdapterSpec
    inputs: tuple[str, ...]
    """The token inputs in order: `input_ids`, `attention_mask`, …"""
    units: tuple[Unit, ...]
    head: tuple[Parameter, ...]
    segments: tuple[Segment, ...]
    shapes: tuple[tuple[int, int], ...]
    """(batch, length) pairs for which there are programs."""
    directions: tuple[int, ...]
    """Values of K for which there are programs."""
    tokenizer: str | None
    """The path of `tokenizer.json`."""
    pad_token_id: int
    runtimes: dict[str, RuntimeSpec]
    verification: tuple[Check, ...]
    files: tuple[FileSpec, ...]
    features: FeatureSpec | None = None
    """The measured layer; None where no linear layer of the head computes the logits."""
    chat_template: str | None = None
    """The path of the tokenizer's chat template and special tokens; of language models alone."""
    turns: TurnsSpec | None = None
    """The chat template for readers that have no Jinja; None where it does more than write words around messages."""
    generation: GenerationSpec | None = None
    """The generation's settings; None where the bundle has no programs that generate."""

    @property
    def trained(self) -> tuple[Parameter, ...]:
        """The trained parameters: the units' in their order, then the head's."""
        return self.trained_with(range(len(self.units)))

    def trained_with(self, units: Iterable[int]) -> tuple[Parameter, ...]:
        """List what a client with these units trains: their parameters, and the head's, which is everybody's."""
        return *(parameter for unit in units for parameter in self.units[unit].parameters), *self.head

    @property
    def bottlenecks(self) -> dict[str, Unit]:
        """The units whose tangents enter there, by the name of what is trained."""
        return {unit.parameters[0].name: unit for unit in self.units if unit.tangents == "bottleneck"}

    @property
    def head_names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.head)

    @property
    def before_logits(self) -> frozenset[str]:
        """The head's parameters before the layer that gives the logits, where that layer's features are known."""
        if self.features is None:
            return frozenset()
        return self.head_names - {self.features.weight, self.features.bias}

    @property
    def head_size(self) -> int:
        return sum(parameter.size for parameter in self.head)


class _Schema(msgspec.Struct):
    """The part of a manifest that is read before its schema is known."""

    schema: int


def read(path: Path) -> Manifest:
    """Return the manifest in a file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(
            f"{path} does not exist; give the folder that `spry export` wrote, with its {FILE_NAME}"
        ) from None
    return parse(data, str(path))


def parse(data: bytes, where: str = FILE_NAME) -> Manifest:
    """Return the manifest in `data`; `where` names it in errors."""
    schema = _decode(data, _Schema, where).schema
    if schema > SCHEMA:
        raise BundleError(
            f"{where} has schema {schema}, but this version of spry reads up to {SCHEMA}: upgrade spry on this "
            "machine, or export the bundle with the version installed here"
        )
    if schema < 1:
        raise BundleError(f"{where} has schema {schema}; expected 1 to {SCHEMA}: export the bundle again")
    manifest = _decode(data, Manifest, where)
    _check_references(manifest, where)
    return manifest


def write(manifest: Manifest) -> bytes:
    """Serialize a manifest to the same bytes each time: indented JSON with sorted dictionaries."""
    for check in manifest.verification:
        if not math.isfinite(check.value):
            raise ValueError(f"verification of {check.runtime}: {check.what} is {check.value}, which JSON cannot hold")
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n"


def _decode(data: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise BundleError(f"{where} is not a manifest of schema {SCHEMA}: {error}; export the bundle again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{where} is damaged ({error}); copy or download the bundle again") from None


def _check_references(manifest: Manifest, where: str) -> None:
    """Everything a manifest names must be in it."""
    names = [segment.name for segment in manifest.segments]
    files = {file.path for file in manifest.files}
    programs = [program for runtime in manifest.runtimes.values() for program in runtime.all_programs]
    if len(names) < 2 or names[0] != EMBED or names[-1] != HEAD or len(set(names)) != len(names):
        raise BundleError(
            f"{where}: segments must go from {EMBED} to {HEAD}, each once; found {', '.join(names) or 'none'}"
        )
    if len(files) != len(manifest.files):
        raise BundleError(f"{where} lists a file twice; export the bundle again")
    _require(where, "segments", names, {f"program {program.name}": (program.segment,) for program in programs})
    _require(where, "segments", names, {f"unit {unit.name}": unit.segments for unit in manifest.units})
    _require(where, "files", files, {f"program {program.name}": (program.file,) for program in programs})
    _require(where, "files", files, {f"runtime {name}": runtime.files for name, runtime in manifest.runtimes.items()})
    _require(where, "files", files, {"the adapter": (manifest.adapter.file,)})
    if manifest.tokenizer is not None:
        _require(where, "files", files, {"the tokenizer": (manifest.tokenizer,)})
    if manifest.chat_template is not None:
        _require(where, "files", files, {"the chat template": (manifest.chat_template,)})


def _require(where: str, what: str, known: list[str] | set[str], named: Mapping[str, tuple[str, ...]]) -> None:
    for owner, names in named.items():
        for name in names:
            if name not in known:
                raise BundleError(
                    f"{where}: {owner} names {name!r}, which is not among the manifest's {what}; export again"
                )
