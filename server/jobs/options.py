"""Define the options of commands that start a job, real or simulated: its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.commands.options.groups import OptionGroup
from edge_client.estimators.registry import ESTIMATORS
from server.aggregation.registry import AGGREGATION_RULES
from server.errors import SettingsError
from server.jobs.presets import PRESETS

PresetOption = Annotated[
    str | None,
    typer.Option(help=f"The settings to start from: {', '.join(PRESETS)}. By default the one that fits the adapter."),
]


@dataclass(frozen=True)
class RoundOptions(OptionGroup):
    """Options for who takes part in a round, and what the server makes of it."""

    title = "Rounds"

    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to run; by default 100.")] = None
    per_round: Annotated[
        int | None, typer.Option(min=1, help="Clients whose updates complete a round; by default 10.")
    ] = None
    assignment: Annotated[
        str | None,
        typer.Option(help="Split of the units: cyclic, over clients; memory, by what fits each client; all, no split."),
    ] = None
    units_per_client: Annotated[
        int | None,
        typer.Option(min=0, help="The fewest units of a client, 0: all. With more, more clients share each unit."),
    ] = None
    aggregation: Annotated[
        str | None,
        typer.Option(
            help=f"How updates are combined: {', '.join(AGGREGATION_RULES)}. Use agreeing if some devices may lie."
        ),
    ] = None
    server_learning_rate: Annotated[float | None, typer.Option(help="The server's learning rate for the units.")] = None
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Rounds between evaluations.")] = None

    def asked(self) -> dict[str, Any]:
        """Return the given options by the names of a job's settings."""
        options = asdict(self)
        return {"optimizers.units.learning_rate": options.pop("server_learning_rate"), **options}


@dataclass(frozen=True)
class TrainingOptions(OptionGroup):
    """Options for clients' training."""

    title = "Training"

    mode: Annotated[str | None, typer.Option(help="Clients send weights (epoch) or scalars (iteration).")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Examples of a step.")] = None
    length: Annotated[int | None, typer.Option(min=2, help="Tokens of an example, at most.")] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over a client's examples in a round.")] = None
    iterations: Annotated[int | None, typer.Option(min=0, help="Steps in a round instead of whole passes.")] = None
    estimator: Annotated[str | None, typer.Option(help=f"Clients' gradients: {', '.join(ESTIMATORS)}.")] = None
    exact_blocks: Annotated[
        int | None,
        typer.Option(min=0, help="The number of last blocks with exact gradients (estimator mixed); by default 1."),
    ] = None
    directions: Annotated[
        int | None, typer.Option(min=0, help="K: directions of a step; 0: as many as a client's units have numbers.")
    ] = None
    kind: Annotated[
        str | None, typer.Option(help="The distribution of directions: normal, rademacher or orthogonal.")
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="The clients' learning rate for the units.")] = None
    head_learning_rate: Annotated[float | None, typer.Option(help="The clients' learning rate for the head.")] = None

    def asked(self) -> dict[str, Any]:
        """Return the given options by the names of a job's settings."""
        return {f"training.{name}": value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class SettingsOptions(OptionGroup):
    """Any setting, by its name."""

    title = "Other settings"

    settings: Annotated[
        str, typer.Option(metavar="<path or JSON>", help="A job's settings: a JSON file, or the JSON itself.")
    ] = ""
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<key=value>", help="Any setting, such as training.epochs=2; may be repeated."),
    ] = None

    def under(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Merge all that was given: --settings, over them other options, by dotted names, and over all of it --set."""
        given = _read(self.settings) if self.settings else {}
        for key, value in {**asked, **_assigned(self.assignments or [])}.items():
            if value is not None:
                _put(given, key, value)
        return given


def _read(source: str) -> dict[str, Any]:
    inline = source.lstrip().startswith(("{", "["))
    where = "--settings" if inline else f"settings {source}"
    try:
        given: Any = json.loads(source if inline else Path(source).read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where} cannot be read as JSON: {error}") from None
    if not isinstance(given, dict):
        raise SettingsError(f'{where} must be a JSON object such as {{"rounds": 50}}')
    return given


def _assigned(given: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise SettingsError(f"--set takes KEY=VALUE, as in training.epochs=2; got {text!r}")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *folders, last = key.split(".")
    for folder in folders:
        inner: Any = settings.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{key} cannot be set: {folder} was given as {json.dumps(inner)}, not as an object")
        settings = inner
    settings[last] = value
