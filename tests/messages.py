"""Finds, in the sources, every message that may reach a user.

A message is written down where its values are: in the construction of an error, of a refusal or of an event, in a
reason that is kept or answered. What varies becomes `…`. Text that stands in a local variable, in an argument of the
function around it, or in the branches of an `if` is followed as far as it is a phrase of its own; what is shorter (a
name, a unit) varies.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("edge_client", "export", "server")
GAP = "…"
SEEDS = {"SpryError", "BadRow", "BadParameter", "RemoteProtocolError", "Located"}
"""Classes whose constructions, and whose subclasses' constructions, carry a message."""
WITH_STATUS = {"Refusal", "Overtaken", "Abstention", "problem"}
"""What takes a status and a code before the message; a device's takes neither."""
TROUBLE = {"warning", "refused", "failed", "waiting", "unreachable", "reachable", "stopped"}
"""Kinds of events that tell of trouble, or of its end."""
WRITES_LOG = {"warning", "error", "exception"}
_PHRASE = 3
"""Words that make a piece of text worth searching for."""
_DEEPEST = 3

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Message:
    template: str
    where: str
    """File and line."""


@cache
def messages() -> tuple[Message, ...]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    constants = {name: text for tree in trees.values() for name, text in _constants(tree)}
    modules = [Module(path, constants, tree) for path, tree in trees.items()]
    classes = _errors(modules)
    found = {
        Message(template, f"{module.path.relative_to(ROOT)}:{line}")
        for module in modules
        for line, expression, function in module.told(classes)
        for template in module.templates(expression, function)
        if template.strip(GAP + " .:;()")
    }
    return tuple(sorted(found))


def normal(text: str) -> str:
    """One way to write a message: single spaces, and one `…` where several would meet."""
    text = re.sub(rf"{GAP}(\s*{GAP})+", GAP, text)
    return re.sub(r"\s+", " ", text).strip()


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in _pairs(target, node.value)]
            yield from ((name, value.value) for name, value in names if _is_text(value))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _errors(modules: list[Module]) -> set[str]:
    known = set(SEEDS)
    bases = {node.name: _bases(node) for m in modules for node in m.nodes if isinstance(node, ast.ClassDef)}
    while new := {name for name, of in bases.items() if of & known} - known:
        known |= new
    return known


def _bases(node: ast.ClassDef) -> set[str]:
    return {_name(base) for base in node.bases}


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@dataclass
class Module:
    path: Path
    constants: dict[str, str]
    """Of all modules."""
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def around(self) -> dict[ast.AST, Function]:
        """The innermost function of each node."""
        found: dict[ast.AST, Function] = {}
        for function in self.nodes:  # breadth first: inner functions come later
            if isinstance(function, Function):
                found |= dict.fromkeys(ast.walk(function), function)
        return found

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        found = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, ast.Call):
                found[_name(node.func)].append(node)
        return found

    # --- where messages are ---

    def told(self, classes: set[str]) -> Iterator[tuple[int, ast.expr, Function | None]]:
        for node in self.nodes:
            function = self.around.get(node)
            for expression in self._expressions(node, function, classes):
                yield expression.lineno, expression, function

    def _expressions(self, node: ast.AST, function: Function | None, classes: set[str]) -> Iterator[ast.expr]:
        if isinstance(node, ast.Call):
            yield from self._of_call(node, function, classes)
        elif isinstance(node, ast.Return) and node.value is not None and function is not None:
            if function.returns is not None and ast.unparse(function.returns) in ("str | None", "Reason"):
                yield node.value
        elif isinstance(node, ast.Yield) and node.value is not None and function is not None:
            if function.returns is not None and ast.unparse(function.returns) == "Iterator[Conflict]":
                yield node.value
        elif isinstance(node, ast.Dict):
            yield from (v for k, v in zip(node.keys, node.values, strict=True) if _is(k, "reason"))

    def _of_call(self, call: ast.Call, function: Function | None, classes: set[str]) -> Iterator[ast.expr]:
        called, arguments = self._called(call, function), call.args
        if called == "Event" and len(arguments) > 1:
            yield from arguments[1:2] if _is(arguments[0], *TROUBLE) else ()
        elif called == "Located":
            yield from arguments[3:]
        elif called in (
            "Refusal",
            "Overtaken",
            "Abstention",
            "problem",
        ):  # a status and a code come first; a device's have neither
            yield from arguments[2:3] or arguments[:1]
        elif called in classes - {"RuntimeMissing"} or called == "complain" or self._is_ours(call, function, classes):
            yield from arguments[:1]
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "reason")

    def _is_ours(self, call: ast.Call, function: Function | None, classes: set[str]) -> bool:
        """A line of the log, what a validator tells, or an error that words its message itself."""
        called, of = _name(call.func), _name(getattr(call.func, "value", call))
        if of == "log" and called in WRITES_LOG:
            return True
        if function is None or called not in ("ValueError", "__init__"):
            return False
        return _validates(function) if called == "ValueError" else bool(_bases_of(self.nodes, function) & classes)

    def _called(self, call: ast.Call, function: Function | None) -> str:
        """The name of what is called; of a class chosen into a variable, that of the class."""
        name = _name(call.func)
        if isinstance(call.func, ast.Name) and function is not None:
            for value in _assigned(function, name):
                if isinstance(value, ast.IfExp):
                    return _name(value.orelse)
        return name

    # --- what they say ---

    def templates(self, expression: ast.expr, function: Function | None) -> set[str]:
        return {normal(re.sub("%[sd]", GAP, text)) for text in self._texts(expression, function, 0)}

    def _texts(self, node: ast.expr | None, function: Function | None, depth: int) -> set[str]:
        found = {GAP}
        match node:
            case ast.Constant(value=str(text)):
                found = {text}
            case ast.JoinedStr(values=parts):
                found = _joined([self._texts(part, function, depth) for part in parts])
            case ast.FormattedValue(value=ast.Name(id=name)) if name in self.constants:
                found = {self.constants[name]}
            case ast.FormattedValue(value=value):
                found = _phrases(self._texts(value, function, depth))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = _joined([_phrases(self._texts(side, function, depth)) for side in (left, right)])
            case ast.IfExp(body=one, orelse=other):
                found = self._texts(one, function, depth) | self._texts(other, function, depth)
            case ast.BoolOp(values=values):
                found = set().union(*(self._texts(value, function, depth) for value in values))
            case ast.Name(id=name) if function is not None and depth < _DEEPEST:
                found = self._variable(name, function, depth + 1) or {GAP}
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if depth < _DEEPEST:
                found = self._returned(name, depth + 1) or {GAP}
        return found

    def _returned(self, name: str, depth: int) -> set[str]:
        """By a method of this module."""
        methods = (node for node in self.nodes if isinstance(node, Function) and node.name == name)
        returns = ((node, method) for method in methods for node in ast.walk(method) if isinstance(node, ast.Return))
        return set().union(*(self._texts(node.value, method, depth) for node, method in returns))

    def _variable(self, name: str, function: Function, depth: int) -> set[str]:
        found: set[str] = set()
        for value in _assigned(function, name):
            found |= self._texts(value, function, depth)
        for value in _added(function, name):
            longer = found - {GAP, ""}
            found |= {f"{text}{more}" for text in longer for more in self._texts(value, function, depth)}
        positions = [argument.arg for argument in function.args.args if argument.arg != "self"]
        for call in self.calls.get(function.name, ()) if name in positions and function.name != "__init__" else ():
            found |= self._texts(_argument(call, name, positions.index(name)), self.around.get(call), depth)
        return found


def _joined(parts: list[set[str]]) -> set[str]:
    return {"".join(chosen) for chosen in product(*map(sorted, parts))}


def _phrases(texts: set[str]) -> set[str]:
    """Inside a sentence: the texts that are phrases of their own; anything shorter is a value."""
    long = {text for text in texts if len(re.findall(r"[a-zA-Z]{2,}", text)) >= _PHRASE}
    if not long:
        return {GAP}
    return long | {text if not text else GAP for text in texts - long}


def _assigned(function: Function, name: str) -> list[ast.expr]:
    return _assignments(function).get(name, [])


@cache
def _assignments(function: Function) -> dict[str, list[ast.expr]]:
    """Every local variable's values, from one walk of the function, as they are asked for again and again."""
    found = defaultdict(list)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _pairs(target, node.value):
                    found[name].append(value)
        elif isinstance(node, ast.NamedExpr):
            found[_name(node.target)].append(node.value)
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Return what is assigned to which names: `a, b = x, y`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its_value in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, its_value)
    elif isinstance(target, ast.Name):
        yield target.id, value


def _added(function: Function, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and _name(node.target) == name:
            yield node.value


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named or (call.args[position] if position < len(call.args) else None)


def _is(node: ast.AST | None, *values: str) -> bool:
    return isinstance(node, ast.Constant) and node.value in values


def _validates(function: Function) -> bool:
    calls = (decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call))
    return any(_name(call.func) in ("field_validator", "model_validator") for call in calls)


def _bases_of(nodes: list[ast.AST], method: Function) -> set[str]:
    owners = (node for node in nodes if isinstance(node, ast.ClassDef) and method in node.body)
    return {base for owner in owners for base in _bases(owner)}


if __name__ == "__main__":
    for message in messages():
        print(f"{message.where}  {message.template}")
