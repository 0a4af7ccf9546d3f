"""Where chat templates run: Jinja's sandbox, with the filters, functions and blocks that transformers gives them.

A template may loop, build lists and call methods of texts; it reaches no file, no attribute with an underscore, and
changes nothing that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MARK = "_mark"
"""The variable that stands before and behind what a template marks as generated."""


class Environment(ImmutableSandboxedEnvironment):
    """Templates of one tokenizer."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generated, loopcontrols])
        self.filters["tojson"] = _json
        functions: dict[str, Callable[..., Any]] = {
            "raise_exception": _refuse,
            "dict": _dictionary,
            "namespace": Names,
        }
        self.globals.update(functions)


class Generated(Extension):
    """`{% generation %}…{% endgeneration %}`, by which templates say what a model is to learn."""

    tags = {"generation"}  # noqa: RUF012 -- as Jinja has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def marked(self, context: Context, caller: Callable[[], str]) -> str:
        mark = context.get(MARK, "")
        return f"{mark}{caller()}{mark}"


class Names(Namespace):
    """What a template may set from within a loop."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        for name in dict(*given, **kwargs):
            _check(name)
        Namespace.__init__(self, *given, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check(name)
        super().__setitem__(name, value)


def _check(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a template may not set {name!r}")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _dictionary(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """The class itself would show more."""
    return dict(*args, **kwargs)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes what HTML would."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
