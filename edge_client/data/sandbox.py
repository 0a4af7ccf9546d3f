"""Where chat templates run: Jinja's sandbox, with the filters, functions and blocks that transformers gives them.

A template may loop, build lists and call methods of texts; it reaches no file, no attribute with an underscore, and
changes nothing that it is given. What it may take is in `budget`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .budget import Budget, guarded

_LOOP, _JOIN, _LITERAL, _WORDS = "_loop", "_join", "_literal", "_words"
_NEEDLESS = "urlize", "pprint", "wordwrap", "xmlattr", "striptags", "batch", "slice"
"""Filters that no chat template has, and that take long for what they are given."""
_LONGEST = 1 << 20
MARK = "_mark"
"""The variable that stands before and behind what a template marks as generated."""


class Environment(ImmutableSandboxedEnvironment):
    """Templates of one tokenizer."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generated, loopcontrols])
        self.budget = Budget()
        self.filters["tojson"] = _json
        for name in _NEEDLESS:
            del self.filters[name]
        self.filters |= {name: guarded(self.budget, name, work) for name, work in self.filters.items()}
        self.filters |= {_LOOP: self._each, _JOIN: self._joined, _LITERAL: self._literal, _WORDS: self._words}
        del self.globals["lipsum"]
        functions: dict[str, Callable[..., Any]] = {
            "raise_exception": _refuse,
            "dict": _dictionary,
            "namespace": Names,
        }
        self.globals.update(functions)

    def from_string(self, source: Any, *args: Any, **named: Any) -> Template:
        self.budget.begin()  # what is constant is worked out now
        return super().from_string(source, *args, **named)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _LONGEST:
            raise TemplateError(f"it has more than {_LONGEST:,} characters")
        return Counted().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        return self.budget.binary(operator, left, right, self.binop_table[operator])

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        call = super().call
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        name = getattr(called, "__name__", "")
        return self.budget.call(name, owner, lambda *given, **by: call(context, called, *given, **by), args, named)

    @pass_context
    def _each(self, _context: Context, values: Any) -> Any:
        return self.budget.each(values)

    @pass_context
    def _joined(self, _context: Context, values: list[Any]) -> str:
        self.budget.step()
        self.budget.reserve(sum(len(value) for value in values if isinstance(value, str)))
        return self.budget.made("".join(map(str, values)))

    @pass_context
    def _words(self, _context: Context, size: int) -> str:
        """Charge the characters that a template writes unchanged."""
        self.budget.step()
        self.budget.pay(size)
        return ""

    @pass_context
    def _literal(self, _context: Context, value: Any) -> Any:
        self.budget.step()
        return self.budget.made(value)


class Counted(NodeTransformer):
    """Lets loops, what is written, and texts, lists and dictionaries that a template puts together, be counted."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 -- as Jinja calls it
        self.generic_visit(node)
        words = sum(len(one.data) for one in node.nodes if isinstance(one, nodes.TemplateData))
        node.nodes = [one if isinstance(one, nodes.TemplateData) else _filtered(one, _LITERAL) for one in node.nodes]
        if words:
            node.nodes.insert(0, _filtered(nodes.Const(words, lineno=node.lineno), _WORDS))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            raise TemplateError("it has a loop that calls itself")
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOIN)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _LITERAL)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _LITERAL)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _LITERAL) if node.ctx == "load" else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


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
