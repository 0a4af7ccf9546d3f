"""`spry new`: a project from a file of examples."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from edge_client.bundle.manifest import TASKS
from edge_client.commands.options.groups import words
from edge_client.data.columns import Columns
from edge_client.data.conversations import RowShape, shape_of
from edge_client.store import files
from edge_client.tasks.registry import task_named
from server.errors import ProjectError
from server.project import file
from server.project.file import ProjectFile, ServerPart
from server.start.choice import Choice, Reading, chosen, counted, how, how_long, model_for, remarks
from server.start.local import LEAST_ROWS
from server.start.port import FIRST, free_port
from server.start.survey import Portion, Survey, surveyed
from server.text import printable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SHOWN_CLASSES = 8
_LEARNED = {
    "messages": "the assistant's answers, each with what ends it",
    "completion": "completions; prompts are read alone",
    "pair": "answers; what is asked is read alone",
    "text": "all of each text",
}
_TRIAL = 4
"""Devices to begin with."""
_IGNORED = "# All but spry.toml is made from it, or secret.\n*\n!.gitignore\n!spry.toml\n"


def new(
    name: Annotated[str, typer.Argument(help="The project's name, and its new folder.")],
    data: Annotated[
        str,
        typer.Option(
            help="Examples: a .jsonl, .json, .csv, .tsv or .parquet file, a folder, or a dataset's name on the hub."
        ),
    ],
    text: Annotated[str, typer.Option(help="The column of the texts; several with + between them.")] = "",
    pair: Annotated[str, typer.Option(help="The column of the second texts, where texts come in pairs.")] = "",
    label: Annotated[str, typer.Option(help="The column of the classes.")] = "",
    task: Annotated[
        str | None, typer.Option(help=f"The task: {', '.join(TASKS)}; by default decided by the columns.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as `spry export` takes it.")] = None,
    target: Annotated[str, typer.Option(help="Runtimes of the devices, separated by commas.")] = "onnx",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a project of that name that has no server yet.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON on standard output.")] = False,
) -> None:
    """Look at data, choose how to learn from it, and write a project that `spry up` starts.

    Example: spry new tickets --data tickets.csv
    """
    folder = Path(name)
    _check(folder, overwrite=overwrite)
    if task is not None:
        task_named(task)
    source = model_for(task, model)
    reader = Reading(source)
    asked = Columns(text, pair, label)
    survey = surveyed(data, asked, task, reader.count, reader.template, lambda found: model_for(found, model))
    choice = chosen(folder.name, survey, source, reader)
    choice.model = msgspec.structs.replace(choice.model, targets=words(target))
    _write(folder, survey, choice)
    told = remarks(survey, source, choice.model.length)
    if as_json:
        typer.echo(json.dumps(_found(survey, choice, told), indent=1))
    else:
        _show(folder, survey, choice, told)


def _check(folder: Path, *, overwrite: bool) -> None:
    if not _NAME.fullmatch(folder.name):
        raise ProjectError(
            f"a project's name has letters, digits, points, - and _, up to 63 of them, got {folder.name!r}"
        )
    if not folder.exists():
        return
    if not overwrite:
        raise ProjectError(f"{folder} exists; choose another name, remove it, or pass --overwrite to replace it")
    if not (folder / file.FILE).is_file():
        raise ProjectError(f"{folder} is no project, so --overwrite will not replace it; choose another name")
    if (folder / "server").exists():
        raise ProjectError(
            f"{folder} has a server that devices may know, so --overwrite will not replace it; choose another name, or "
            "remove it after `spry down`"
        )


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(folder: Path, survey: Survey, choice: Choice) -> None:
    """Write the whole folder or none of it."""
    whole = ProjectFile(model=choice.model, job=choice.job, server=ServerPart(port=free_port() or FIRST))
    making = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    try:
        files.make_folder(making)
        _write_rows(making / whole.data.train, survey.train)
        _write_rows(making / whole.data.held_out, survey.held_out)
        (making / ".gitignore").write_text(_IGNORED)
        (making / file.FILE).write_text(file.written(whole, choice.why))
        shutil.rmtree(folder, ignore_errors=True)  # none, or one that was to be replaced
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _write_rows(path: Path, part: Portion) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as rows:
        for place in part.examples.places:
            rows.write(msgspec.json.encode(part.source.row(place)) + b"\n")


# --- what is printed -------------------------------------------------------------------------------------------------


def _show(folder: Path, survey: Survey, choice: Choice, told: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def say(line: str) -> None:
        console.print(printable(line), markup=False)

    read = "; ".join(f"{field} from {' + '.join(columns)}" for field, columns in _shown_fields(survey))
    say(f"{survey.name}: {counted(survey.rows)}{f', {read}' if read else ''}")
    if survey.labels:
        say(f"  {len(survey.classes)} classes: {_classes(survey)}")
        say(f"  always answering the most frequent one would be right in {survey.majority:.0%}")
    if survey.task == "causal-lm":
        shape = shape_of(survey.fields)
        if shape is not None and shape.form != "text":
            say(f"  taken for: {_taken_for(shape, survey.fields)}")
        say(f"  learned: {_LEARNED[shape.form if shape else 'text']}")
    if survey.tokens:
        middle = survey.tokens[len(survey.tokens) // 2]
        say(f"  tokens: {survey.tokens[0]} to {survey.tokens[-1]}, half of the rows have {middle} or fewer")
    for line in told:
        console.print(f"[yellow]![/yellow] {printable(line)}", markup=True)
    say("")
    why = choice.why
    say(f"chosen: {choice.model.task} by {choice.model.source} ({why['model.source']}), {choice.model.quantize}")
    say(f"  {choice.model.length} tokens a row: {why['model.length']}")
    held_out, train = len(survey.held_out.examples), len(survey.train.examples)
    say(f"  {counted(held_out)} held out to measure on, {train:,} to learn from")
    say(f"  {how_long(choice.job)}; no rates to set: {how(choice)}")
    say("")
    say(f"written to {folder / file.FILE}; change there what you like. Next:")
    trial = min(_TRIAL, train // LEAST_ROWS)
    here = f" --try {trial}      # devices on this machine, each with a slice of the rows" if trial else ""
    say(f"  cd {folder} && spry up{here}")


def _shown_fields(survey: Survey) -> list[tuple[str, tuple[str, ...]]]:
    return [(field, columns) for field, columns in survey.fields.items() if columns != (field,)]


def _taken_for(shape: RowShape, fields: Iterable[str]) -> str:
    if shape.form == "messages":
        return f"conversations, from {shape.fields[0]}"
    if shape.form == "completion":
        return "prompts with their completions"
    first, last = shape.fields
    beside = [field for field in fields if field in shape.beside]
    return f"questions with their answers: {' and '.join([first, *beside])}, answered by {last}"


def _classes(survey: Survey) -> str:
    common = survey.classes.most_common(_SHOWN_CLASSES)
    shown = ", ".join(f"{survey.labels[label]} ({count:,})" for label, count in common)
    more = len(survey.classes) - len(common)
    return shown + (f" and {more} more" if more else "")


def _found(survey: Survey, choice: Choice, told: list[str]) -> dict[str, Any]:
    return {
        "rows": survey.rows,
        "train": len(survey.train.examples),
        "held_out": len(survey.held_out.examples),
        "columns": {field: "+".join(columns) for field, columns in survey.fields.items()},
        "classes": {survey.labels[label]: count for label, count in survey.classes.most_common()},
        "majority": round(survey.majority, 4),
        "longest": survey.tokens[-1] if survey.tokens else 0,
        "left_out": survey.skipped.count,
        "repeated": survey.repeated,
        "contradicted": survey.contradicted,
        "remarks": told,
        "model": msgspec.to_builtins(choice.model),
        "job": msgspec.to_builtins(choice.job),
    }
