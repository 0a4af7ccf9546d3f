"""Write the Java records of messages from those of Python, so that both have the same fields, defaults and bounds.

    python android_demo/core/messages.py            # writes them
    python android_demo/core/messages.py --check    # ends with 1 where they differ

`edge_client/wire/protocol.py` is the one description: the server's OpenAPI document comes from it too.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

sys.path.insert(0, str(Path(__file__).parents[2]))

from annotated_types import Ge, Gt, Le, Len, Lt

import edge_client
from edge_client.wire import protocol

FOLDER = Path(__file__).parent / "src/main/java/dev/spry/core/wire"
READ = (
    protocol.Training,
    protocol.ServerOptimizer,
    protocol.ServerOptimizers,
    protocol.Sum,
    protocol.Task,
    protocol.CheckedIn,
    protocol.Enrolled,
    protocol.OpenJob,
    protocol.Receipt,
)
"""Messages that a device reads."""
KEPT = (
    protocol.Training,
    protocol.ServerOptimizer,
    protocol.ServerOptimizers,
    protocol.Sum,
    protocol.Task,
    protocol.Enrolled,
)
"""The messages that Java writes to its disk."""
SENT = (protocol.Enrolment, protocol.DeviceKey, protocol.CheckIn, protocol.Report, protocol.Failure)
"""Messages that it writes."""
NAMES = {protocol.Training: "TrainingSettings"}
"""Java names that differ, as it has another class of that name."""
CHARACTERS, ELEMENTS, REAL = 2000, 65_536, 1e30
"""The bounds of what has none of its own (`edge_client/wire/bounds.py`)."""
_WITHOUT: dict[Any, tuple[float, float]] = {
    float: (-REAL, REAL), int: (-(2**31), 2**31 - 1), str: (0, CHARACTERS),
}  # fmt: skip
WIDTH = 120
SHORT = 3
"""Fields of a message that is made of them in Java, too."""


@dataclass(frozen=True)
class Member:
    """A field of a message, in Java."""

    field: Field[Any]
    kind: Any
    """Its Python type, without None and bounds."""
    optional: bool
    least: float
    most: float
    of: Member | None
    """The element of a list, or the value of a mapping."""
    about: str

    @property
    def wire(self) -> str:
        return self.field.name

    @property
    def name(self) -> str:
        return re.sub(r"_(\w)", lambda found: found[1].upper(), self.wire)

    @property
    def is_whole(self) -> bool:
        return self.kind is int

    @property
    def is_int(self) -> bool:
        return self.is_whole and self.most <= 2**31 - 1

    @property
    def java(self) -> str:
        if self.of is not None:
            if get_origin(self.kind) is dict:
                return f"Map<String, {self.of.boxed}>"
            return "int[]" if self.of.is_int else f"List<{self.of.boxed}>"
        return self.boxed if self.optional else self.plain

    @property
    def plain(self) -> str:
        if is_dataclass(self.kind):
            return name_of(self.kind)
        if self.is_whole:
            return "int" if self.is_int else "long"
        return {str: "String", bool: "boolean", float: "double"}[self.kind]

    @property
    def boxed(self) -> str:
        plain = self.plain
        return {"int": "Integer", "long": "Long", "boolean": "Boolean", "double": "Double"}.get(plain, plain)

    @property
    def is_required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self) -> Any:
        if self.field.default is not MISSING:
            return self.field.default
        assert self.field.default_factory is not MISSING
        return self.field.default_factory()


# --- from Python's types ---------------------------------------------------------------------------------------------


def members(message: type[Any]) -> list[Member]:
    hints = get_type_hints(message, include_extras=True)
    told = {name: text for kind in reversed(message.__mro__) for name, text in abouts(kind).items()}
    return [member(field, hints[field.name], told.get(field.name, "")) for field in fields(message)]


def member(field: Field[Any], hint: Any, about: str = "") -> Member:
    notes, optional = list[Any](), False
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            notes += more
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
            optional = True
        else:
            break
    kind = str if get_origin(hint) is Literal else hint
    of = member(field, get_args(kind)[-1]) if get_origin(kind) in (list, dict) else None
    least, most = bounds(kind, notes)
    return Member(field, kind, optional, least, most, of, about)


def bounds(kind: Any, notes: Sequence[Any]) -> tuple[float, float]:
    """Read the least and the most of a number, or of the length of anything else."""
    least, most = _WITHOUT.get(kind, (0.0, float(ELEMENTS)))
    for note in notes:
        if isinstance(note, Len):
            least, most = note.min_length, most if note.max_length is None else note.max_length
        elif isinstance(note, Ge):
            least = cast("float", note.ge)
        elif isinstance(note, Gt):
            least = above(cast("float", note.gt), 1, kind)
        elif isinstance(note, Le):
            most = cast("float", note.le)
        elif isinstance(note, Lt):
            most = above(cast("float", note.lt), -1, kind)
        else:
            raise TypeError(f"no Java for {note}")
    return least, min(most, 2**63 - 1) if kind is int else most


def above(value: float, towards: int, kind: Any) -> float:
    """Give the next number above a value, or below it."""
    return math.nextafter(value, towards * math.inf) if kind is float else value + towards


def abouts(message: type[Any]) -> dict[str, str]:
    """Read the texts below a class's fields."""
    if not message.__module__.startswith(edge_client.__name__):
        return {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(message))).body
    assert isinstance(definition, ast.ClassDef)
    told: dict[str, str] = {}
    before: ast.stmt | None = None
    for node in definition.body:
        text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(text, str):
            told[before.target.id] = text
        before = node
    return told


def name_of(message: Any) -> str:
    return str(NAMES.get(message) or message.__name__)


# --- to Java's text --------------------------------------------------------------------------------------------------


def number(value: float, like: Member) -> str:
    if like.is_whole:
        return f"{int(value)}" if like.is_int else f"{int(value)}L"
    return repr(float(value))


def literal(one: Member) -> str:
    value = one.default
    if value is None:
        return "null"
    if one.of is not None:
        assert not value, f"{one.wire}: only an empty default has a Java"
        return "new int[0]" if one.java == "int[]" else f"Collections.{empty(one)}()"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else number(value, one)


def empty(one: Member) -> str:
    assert one.of is not None
    if get_origin(one.kind) is dict:
        return f"<String, {one.of.boxed}>emptyMap"
    return f"<{one.of.boxed}>emptyList"


def reading(one: Member) -> str:
    """Give the expression that reads a field of `json`."""
    if is_dataclass(one.kind):
        kind = name_of(one.kind)
        if one.optional:
            return f'json.isNull("{one.wire}") ? null : new {kind}(json.getJSONObject("{one.wire}"))'
        apart = json.dumps(json.dumps({} if one.is_required else apart_from_defaults(one.default)))
        found = f'json.getJSONObject("{one.wire}")' if one.is_required else f'Json.object(json, "{one.wire}", {apart})'
        return f"new {kind}({found})"
    asked = [f'json, "{one.wire}"']
    bounded = one if one.of is None else one.of
    if bounded.kind is not bool:
        asked.append(f"{number(bounded.least, bounded)}, {number(bounded.most, bounded)}" if bounded.kind is not str
                     else f"{int(bounded.least)}, {int(bounded.most)}")  # fmt: skip
    if one.of is not None:
        asked.append(f"{int(one.most)}")
        read = f"Json.{'numbers' if one.java == 'int[]' else 'texts'}({', '.join(asked)})"
        return read if one.is_required else f'json.isNull("{one.wire}") ? {literal(one)} : {read}'
    read = {"int": "number", "long": "whole", "double": "real", "String": "text", "boolean": "truth"}[one.plain]
    if one.optional:
        return f'json.isNull("{one.wire}") ? null : ({one.boxed}) Json.{read}({", ".join(asked)})'
    if not one.is_required:
        asked.append(literal(one))
    return f"Json.{read}({', '.join(asked)})"


def apart_from_defaults(message: Any) -> dict[str, Any]:
    """Collect the fields of a default message that differ from those of its class."""
    own = {field.name: getattr(message, field.name) for field in fields(message)}
    return {name: value for name, value in own.items() if value != getattr(type(message)(), name)}


def writing(one: Member) -> str:
    """Give the call that puts a field into JSON."""
    value = one.name
    if is_dataclass(one.kind):
        value = f"{one.name} == null ? null : {one.name}.toJson()" if one.optional else f"{one.name}.toJson()"
    elif one.java == "int[]":
        value = f"Json.array({one.name})"
    elif one.of is not None:
        value = f"new {'JSONObject' if get_origin(one.kind) is dict else 'JSONArray'}({one.name})"
    return f'.{"putOpt" if one.optional else "put"}("{one.wire}", {value})'


def comment(text: str, indent: str) -> Iterator[str]:
    plain = " ".join(text.replace("None", "null").split())
    line = f"{indent}/** {plain} */"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}/**"
    yield from textwrap.wrap(plain, WIDTH, initial_indent=f"{indent} * ", subsequent_indent=f"{indent} * ")
    yield f"{indent} */"


def statement(text: str, indent: str = " " * 8) -> Iterator[str]:
    """Break a statement that is too long before its last operator of choice, or after a comma."""
    if len(indent + text) <= WIDTH:
        yield indent + text
        return
    at = text.find(" ? ")
    cut = at if at > 0 else text.rfind(", ", 0, WIDTH - len(indent)) + 1
    yield (indent + text[:cut]).rstrip()
    yield from statement(text[cut:].strip(), indent + " " * 8)


def java(message: type[Any], *, read: bool) -> str:
    """Write a message's class."""
    own, name = members(message), name_of(message)
    final = "final " if read else ""
    lines = list[str]()
    for one in own:
        if one.about:
            lines += comment(one.about, "    ")
        start = "" if read or one.is_required else f" = {literal(one)}"
        lines.append(f"    public {final}{one.java} {one.name}{start};")
    lines.append("")
    if read:
        lines.append(f"    public {name}(JSONObject json) throws JSONException {{")
        for one in own:
            lines += statement(f"{one.name} = {reading(one)};")
        lines += ["    }", ""]
    required = own if read and len(own) <= SHORT and not any(is_dataclass(one.kind) for one in own) else []
    required = required if read else [one for one in own if one.is_required]
    if required:
        lines.append(f"    public {name}({', '.join(f'{one.java} {one.name}' for one in required)}) {{")
        lines += [f"        this.{one.name} = {one.name};" for one in required]
        lines += ["    }", ""]
    if not read or message in KEPT:
        lines += ["    public JSONObject toJson() throws JSONException {", "        return new JSONObject()"]
        lines += [f"                {writing(one)}" for one in own]
        lines[-1] += ";"
        lines.append("    }")
    else:
        del lines[-1]
    about = list(comment((message.__doc__ or "").split("\n\n")[0], ""))
    return "\n".join([header(lines), *about, f"public final class {name} {{", *lines, "}", ""])


def header(lines: Sequence[str]) -> str:
    body = "\n".join(lines)
    utilities = [kind for kind in ("Collections", "List", "Map") if re.search(rf"\b{kind}\b", body)]
    array = "JSONArray" in body
    return "\n".join([
        "// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.",
        "package dev.spry.core.wire;",
        "",
        *[f"import java.util.{kind};" for kind in utilities],
        *([""] if utilities else []),
        *(["import org.json.JSONArray;"] if array else []),
        "import org.json.JSONException;",
        "import org.json.JSONObject;",
        "",
    ])  # fmt: skip


def main() -> int:
    written = {f"{name_of(one)}.java": java(one, read=True) for one in READ}
    written |= {f"{name_of(one)}.java": java(one, read=False) for one in SENT}
    stale = [name for name, text in written.items()
             if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text]  # fmt: skip
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{FOLDER / name} is not what the protocol says: run python android_demo/core/messages.py")
        return int(bool(stale))
    for name in stale:
        (FOLDER / name).write_text(written[name])
    print(f"{len(stale)} of {len(written)} written in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
