"""Options in groups: each is defined once, as a field of a dataclass, and commands take a group as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

Result = TypeVar("Result")


class OptionGroup:
    """A dataclass with a field `Annotated[type, typer.Option(help="...")]` for each option.

    A tuple of texts is one option on the command line, with commas between them.
    """

    title: ClassVar[str]
    """The heading above its options in the help."""


def command_group(what: str) -> typer.Typer:
    """Open a group of commands; `what` is its help."""
    return typer.Typer(help=what, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


class _Option(NamedTuple):
    field: str
    parameter: inspect.Parameter
    """The parameter as typer reads it."""
    read: Callable[[Any], Any]
    """Converts typer's value to the field's."""


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """Make a command for typer with a parameter for each option; the function itself is handed its groups.

    `Annotated[AGroup, {"alpha": "--lora-alpha"}]` gives options other names than the group does.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[OptionGroup], list[_Option]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        kind, *names = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, OptionGroup):
            options = list(_options(kind, *names))
            groups[parameter.name] = kind, options
            parameters += [option.parameter for option in options]
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_groups(**given: Any) -> Result:
        whole = {
            name: group(**{field: read(given.pop(parameter.name)) for field, parameter, read in options})
            for name, (group, options) in groups.items()
        }
        return command(**given, **whole)

    vars(with_groups).update(__signature__=inspect.Signature(parameters))  # refuses two options of one name
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def words(text: str) -> tuple[str, ...]:
    """Split a text at its commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _options(group: type[OptionGroup], names: Mapping[str, str] | None = None) -> Iterator[_Option]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):  # type: ignore[arg-type] -- every group is a dataclass
        kind, described = get_args(hints[field.name])
        option: OptionInfo = copy(described)
        declared = option.default if isinstance(option.default, str) else f"--{field.name.replace('_', '-')}"
        option.default = (names or {}).get(field.name, declared)  # in Annotated, typer looks here for the first name
        option.rich_help_panel = option.rich_help_panel or group.title
        default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
        read: Callable[[Any], Any] = _as_it_is
        if get_origin(kind) is tuple:
            kind, default, read = str, ",".join(default), words
        name = option.default.partition("/")[0].removeprefix("--").replace("-", "_")
        parameter = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )
        yield _Option(field.name, parameter, read)


def _as_it_is(value: Any) -> Any:
    return value
