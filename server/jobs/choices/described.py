"""Describe a job's settings for a form: in groups, each with a line of help, read from the settings' own types.

Any setting that is added to `JobSettings`, `Training` or `ServerOptimizer` is here without another line; one that no
group names stands in the last.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel
from typer.models import OptionInfo

from edge_client.estimators.registry import ESTIMATORS
from edge_client.training.server_optimizers import SERVER_OPTIMIZERS
from edge_client.wire.protocol import ServerOptimizer, Training
from server.aggregation.registry import AGGREGATION_RULES
from server.jobs.options import RoundOptions, TrainingOptions
from server.jobs.settings import JobSettings

Kind = Literal["boolean", "choice", "integer", "number", "text"]

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Rounds": (
        "rounds", "per_round", "over_selection", "minimum", "deadline", "iteration_deadline", "schedule", "buffer",
        "max_staleness", "assignment", "units_per_client", "unmetered_only", "mains_only",
        "mirrors",
    ),
    "Measuring and stopping": (
        "device_evaluation", "evaluate_every", "evaluate_answers", "target", "patience",
    ),
    "Aggregation": ("aggregation", "weight_bound", "norm_bound", "average", "measure_features"),
    "Secure aggregation": ("secure_aggregation", "min_holders"),
    "Differential privacy": ("privacy_",),
    "Training on devices": ("passes", "training."),
    "The server's step": ("optimizers.",),
    "Other": (),
}  # fmt: skip
"""The titles, with the settings below each: by their names, or by how these begin."""
_ELSEWHERE = "held_out"
"""The setting that a form leaves out: a file, not a value."""


class SettingView(BaseModel):
    """A setting of a job, as a field of a form."""

    name: str
    """The setting's name as `--set` takes it, such as `training.epochs`."""
    help: str
    """The help of its option of `spry job create`, if it has one."""
    kind: Kind
    choices: list[str]
    """The names that may be chosen."""
    least: float | None
    """The least value of a number; 0 for one that must be above 0."""
    most: float | None
    default: bool | int | float | str | None
    """The value where neither a preset nor anybody sets one; null where it is left open."""


class SettingsGroup(BaseModel):
    """Settings that belong together."""

    title: str
    settings: list[SettingView]


@cache
def described() -> list[SettingsGroup]:
    """Describe all settings of a job, in groups."""
    groups: dict[str, list[SettingView]] = {title: [] for title in _GROUPS}
    for setting in sorted(_settings(), key=lambda one: _place(one.name)):
        groups[list(_GROUPS)[_place(setting.name)[0]]].append(setting)
    return [SettingsGroup(title=title, settings=settings) for title, settings in groups.items() if settings]


def _place(name: str) -> tuple[int, int]:
    """Return the number of its group, and of the name or beginning that puts it there."""
    for number, wanted in enumerate(_GROUPS.values()):
        for place, one in enumerate(wanted):
            if name == one or (one[-1] in "._" and name.startswith(one)):
                return number, place
    return len(_GROUPS) - 1, 0


def _settings() -> Iterator[SettingView]:
    schema, helps = JobSettings.model_json_schema(), _helps()
    choices: dict[str, list[str]] = {"training.estimator": list(ESTIMATORS), "aggregation": list(AGGREGATION_RULES)}
    choices |= {f"optimizers.{whose}.kind": list(SERVER_OPTIMIZERS) for whose in ("units", "head")}
    defaults = JobSettings().model_dump(mode="json")
    for name, property_ in _leaves(schema, schema["$defs"]):
        if name == _ELSEWHERE:
            continue
        known: list[str] = choices[name] if name in choices else list(property_.get("enum", ()))
        options = [one for one in property_.get("anyOf", [property_]) if one.get("type") != "null"]
        bounds: dict[str, Any] = {**property_, **options[0]}
        kind: Kind = "choice" if known else _KINDS[bounds["type"]]
        yield SettingView(
            name=name,
            help=helps.get(name) or property_.get("description", ""),
            kind=kind,
            choices=known,
            least=bounds.get("minimum", bounds.get("exclusiveMinimum")),
            most=bounds.get("maximum", bounds.get("exclusiveMaximum")),
            default=_found(defaults, name),
        )


_KINDS: Mapping[str, Kind] = {"boolean": "boolean", "integer": "integer", "number": "number", "string": "text"}


def _leaves(schema: Mapping[str, Any], known: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, property_ in schema["properties"].items():
        if "$ref" in property_:
            yield from _leaves(known[property_["$ref"].rpartition("/")[2]], known, f"{before}{name}.")
        else:
            yield before + name, property_


def _found(settings: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    return _found(settings[first], rest) if rest else settings[first]


# --- help ------------------------------------------------------------------------------------------------------------


def _helps() -> dict[str, str]:
    """Collect a line for each setting that has one beside its type: its option's help, or the field's docstring."""
    helps = {f"training.{name}": line for name, line in _docstrings(Training)}
    for whose in ("units", "head"):
        helps |= {f"optimizers.{whose}.{name}": line for name, line in _docstrings(ServerOptimizer)}
    for group in (RoundOptions, TrainingOptions):
        for field, hint in get_type_hints(group, include_extras=True).items():
            options = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, OptionInfo)]
            if options and options[0].help:
                helps[_setting_of(group, field)] = options[0].help
    return helps


def _setting_of(group: type[RoundOptions | TrainingOptions], field: str) -> str:
    """Return the setting that an option of this field sets."""
    marked: Any = {field: field}
    return next(name for name, value in group(**marked).asked().items() if value == field)


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the lines below a class's fields, as its source has them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, line in zip(body.body, body.body[1:], strict=False):
        match field, line:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, " ".join(words.split())
            case _:
                pass
