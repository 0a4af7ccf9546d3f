"""Run chat templates in Jinja's sandbox, with the filters, functions and blocks that transformers gives them.

A template may loop, build lists and call methods of texts; it reaches no file, no attribute with an underscore, and
changes nothing that it is given. Loops, calls and operators are counted, and so is what they make, before it is made
where a few words could make much of it; time is for what is left: many steps over what is large each.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

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
    """Hold names that a template may set from within a loop."""

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
    """Build a dictionary for templates: the class itself would expose more."""
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


# --- what a template may take ---

STEPS = 200_000
SIZE = 1 << 25
"""Characters, an element of a list as many."""
SECONDS = 1.0
"""Seconds of processor time of this thread."""
_NUMBER = 100_000
"""The largest width or count that a call may be given."""
_BITS = 4096
"""The most bits of a whole number."""
_ELEMENT = 64
_LOOK = 32
"""Steps between two looks at the clock."""
_WIDE = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d*\.)?(?:\d{5,}|\*)|\.\*")
_METHODS = {"translate", "encode", "maketrans", "to_bytes", "from_bytes", "fromkeys"}
"""Methods that are refused: their results are no text, or longer than their arguments tell."""

_LISTS: tuple[Any, ...] = (list, tuple, set, frozenset)
_TABLE: Any = dict
_NESTED: tuple[Any, ...] = (*_LISTS, dict)


class TooMuch(Exception):
    """A template went beyond its budget."""


class Budget(threading.local):
    """The remaining budget of one rendering, in one thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._steps, self._size = STEPS, SIZE
        self._until = time.thread_time() + SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TooMuch(f"takes more than {STEPS:,} steps")
        if self._steps % _LOOK == 0 and time.thread_time() > self._until:
            raise TooMuch(f"takes more than {SECONDS:g} s")

    def reserve(self, size: float) -> None:
        """Reserve the size of a text in characters, or of as much else."""
        if size > self._size:
            raise TooMuch(f"makes more than {SIZE:,} characters")

    def made(self, value: Any) -> Any:
        """Pay for what an operation made."""
        waiting: list[Any] = [value]
        while waiting:
            one: Any = waiting.pop()
            if isinstance(one, str | bytes):
                self.pay(len(one))
            elif isinstance(one, _LISTS):
                self.pay(_ELEMENT * len(one))
                waiting += [inner for inner in one if isinstance(inner, _NESTED)]
            elif isinstance(one, _TABLE):
                self.pay(2 * _ELEMENT * len(one))
                waiting += [inner for inner in one.values() if isinstance(inner, _NESTED)]
            elif isinstance(one, int) and one.bit_length() > _BITS:
                raise TooMuch(f"makes numbers of more than {_BITS} bits")
        return value

    def pay(self, size: int) -> None:
        self.reserve(size)
        self._size -= size

    # --- what a template does ---

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield a loop's values, each a step."""
        for value in values:
            self.step()
            yield value

    def binary(self, operator: str, left: Any, right: Any, work: Callable[[Any, Any], Any]) -> Any:
        self.step()
        if operator == "**":
            self.reserve(0 if _bits(left) * abs(right) <= _BITS else SIZE + 1)
        elif operator == "*":
            self.reserve(max(_size(left) * _count(right), _size(right) * _count(left)))
        elif operator == "+":
            self.reserve(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            self._format(left, right)
        return self.made(work(left, right))

    def call(
        self, name: str, owner: Any, work: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call a method, a filter or a function; `owner` is the object that it is of, or its first argument."""
        self.step()
        given = [*args, *named.values()]
        if name in _METHODS:
            raise TooMuch(f"calls {name}")
        for one in given:
            if isinstance(one, int) and one is not owner and abs(one) > _NUMBER:
                raise TooMuch(f"calls {name} with {one if abs(one) < 10**30 else 'a number of more than 30 digits'}")
        self._foresee(name, owner, [one for one in given if one is not owner])
        return self.made(work(*args, **named))

    def _foresee(self, name: str, owner: Any, given: list[Any]) -> None:
        """Refuse what would make much of little."""
        texts = [one for one in [owner, *given] if isinstance(one, str)]
        widths = [abs(one) for one in given if isinstance(one, int)]
        if name == "replace" and len(texts) > 2:
            self.reserve(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        elif name in ("join", "sum"):
            parts: Any = next((one for one in [owner, *given] if isinstance(one, _LISTS)), ())
            between = max(map(len, texts), default=0)
            self.reserve(sum(between + _size(part) for part in parts))
        elif name in ("indent", "expandtabs"):
            lines = 1 + max((text.count("\n") + text.count("\t") for text in texts), default=0)
            self.reserve(lines * max([*widths, *map(len, texts[1:]), 8]))
        elif name == "tojson":
            self.reserve(max([0, *widths]) * _ELEMENT)
        elif name == "format" and texts:
            self._format(texts[0], given)

    def _format(self, text: str, given: Any) -> None:
        if _WIDE.search(text) or re.search(r":[^{}]*(?:\d{5,}|\{)", text):
            raise TooMuch("asks for a width of more than four digits, or one that it works out")
        values: Any = given.values() if isinstance(given, _TABLE) else given if isinstance(given, _LISTS) else [given]
        marks = text.count("%") + text.count("{")
        self.reserve(len(text) + marks * (_NUMBER // 10 + max(map(_size, values), default=0)))


def guarded(budget: Budget, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that it pays for what it does."""
    at = 1 if hasattr(work, "jinja_pass_arg") else 0

    @wraps(work)
    def within(*args: Any, **named: Any) -> Any:
        return budget.call(name, args[at] if len(args) > at else None, work, args, named)

    return within


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return _ELEMENT * len(value) if isinstance(value, _NESTED) else 1


def _count(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 1


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
