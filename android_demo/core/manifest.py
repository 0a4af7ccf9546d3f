"""Write what Java's records of a manifest hold and read from those of Python, each into its class's first part.

    python android_demo/core/manifest.py            # writes them
    python android_demo/core/manifest.py --check    # ends with 1 where they differ

`edge_client/bundle/manifest.py` is the one description. What a class does with its fields is written by hand, below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from messages import abouts, comment, statement

from edge_client.bundle import manifest

FOLDER = Path(__file__).parent / "src/main/java/dev/spry/core/bundle"
RECORDS: dict[type[Any], str] = {
    manifest.TensorSpec: "TensorSpec",
    manifest.ProgramSpec: "ProgramSpec",
    manifest.FileSpec: "FileSpec",
    manifest.Parameter: "Parameter",
    manifest.Unit: "Unit",
    manifest.Segment: "Segment",
    manifest.OutputSummary: "OutputSummary",
    manifest.Trial: "Trial",
    manifest.RuntimeSpec: "RuntimeSpec",
    manifest.ModelSpec: "Model",
    manifest.AdapterSpec: "Adapter",
    manifest.FeatureSpec: "Features",
    manifest.GenerationSpec: "Generation",
    manifest.ThoughtsSpec: "Thoughts",
    manifest.TurnsSpec: "Turns",
    manifest.Manifest: "Manifest",
}
LEFT_OUT = {
    "AdapterSpec.config", "FeatureSpec.square", "Manifest.schema", "Manifest.verification", "RuntimeSpec.processor",
    "RuntimeSpec.versions", "RuntimeSpec.weights_bytes", "Segment.one_token",
}  # fmt: skip
"""The fields that Java does not read; android_demo/README.md says why."""
LONG = {"bytes", "flops", "load_bytes", "parameters", "peak_bytes", "vocabulary"}
"""Numbers that need more than 32 bits."""
ARRAYS = {"shape", "samples"}
"""Lists of numbers that Java has as arrays, and hands out copies of."""
CHECKED = {manifest.Parameter, manifest.ThoughtsSpec}
"""Classes whose `check`, written by hand, sees what was read."""
SHAPES = tuple[tuple[int, int], ...]
SOURCE = "edge_client/bundle/manifest.py"
BEGIN = f"    // --- written by android_demo/core/manifest.py from {SOURCE}: change that, and run it ---\n"
END = "    // --- by hand ---\n"
_BOXED = {str: "String", int: "Integer", float: "Double", bool: "Boolean"}
_READ = {
    "String": "getString", "int": "getInt", "Integer": "getInt", "long": "getLong", "double": "getDouble",
    "boolean": "getBoolean",
}  # fmt: skip


def plain(hint: Any) -> Any:
    """Take a type out of its union with None, and texts for literals."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    return str if get_origin(hint) is Literal else hint


def kind_of(name: str, hint: Any) -> str:
    """Give a field's Java type."""
    kind = plain(hint)
    if kind == SHAPES:
        return "List<Shape>"
    if get_origin(kind) is tuple:
        of = boxed(get_args(kind)[0])
        return f"{'int' if of == 'Integer' else 'double'}[]" if name in ARRAYS else f"List<{of}>"
    if get_origin(kind) is dict or kind in RECORDS or kind is not hint:
        return boxed(kind)
    return "long" if name in LONG else {int: "int", float: "double", bool: "boolean"}.get(kind, "String")


def boxed(hint: Any) -> str:
    """Give the Java type of an element, and of what may be null."""
    kind = plain(hint)
    if get_origin(kind) is dict:
        return f"Map<String, {boxed(get_args(kind)[1])}>"
    return _BOXED.get(kind) or RECORDS[kind]


def reader(hint: Any, json: str, at: str) -> str:
    """Give the expression that reads a value at a key of `json`."""
    kind = plain(hint)
    if kind == SHAPES:
        return f"Json.arrays({json}.getJSONArray({at}), Shape::new)"
    if kind in RECORDS:
        return f"new {RECORDS[kind]}({json}.getJSONObject({at}))"
    if get_origin(kind) is dict:
        of = get_args(kind)[1]
        each = "JSONObject::getString" if of is str else f"(map, key) -> {reader(of, 'map', 'key')}"
        return f"Json.map({json}.getJSONObject({at}), {each})"
    of, *more = (plain(one) for one in get_args(kind))
    if of in RECORDS:
        return f"Json.list({json}.getJSONArray({at}), {RECORDS[of]}::new)"
    if of is str:
        count = f", {1 + len(more)}" if Ellipsis not in more else ""
        return f"Json.strings({json}.getJSONArray({at}){count})"
    return f"Json.integers({json}.getJSONArray({at}))"


def reading(name: str, hint: Any, default: Any) -> str:
    """Give the expression that reads a field, or takes its default."""
    java, at = kind_of(name, hint), f'"{name}"'
    if name in ARRAYS:
        read = f"Json.{'ints' if java == 'int[]' else 'doubles'}(json.getJSONArray({at}))"
    elif java in _READ:
        read = f"json.{_READ[java]}({at})"
    else:
        read = reader(hint, "json", at)
    if NoneType in get_args(hint):
        return f"json.isNull({at}) ? null : {read}"
    if default is msgspec.NODEFAULT:
        return read
    return f"json.isNull({at}) ? {literal(default, java)} : {read}"


def literal(value: Any, java: str) -> str:
    if value == ():
        return f"Collections.{java.removeprefix('List')}emptyList()"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def part(record: type[Any]) -> Iterator[str]:
    """Write the fields of a record and its constructor."""
    hints, told = get_type_hints(record), abouts(record)
    own = [field for field in msgspec.structs.fields(record) if f"{record.__name__}.{field.name}" not in LEFT_OUT]
    arrays = list[tuple[str, str]]()
    for field in own:
        java, name = kind_of(field.name, hints[field.name]), camel(field.name)
        if field.name in told:
            yield from comment(told[field.name], "    ")
        yield f"    {'private' if java.endswith('[]') else 'public'} final {java} {name};"
        arrays += [(java, name)] if java.endswith("[]") else []
    yield ""
    hidden = "private " if record is manifest.Manifest else ""
    yield f"    {hidden}{RECORDS[record]}(JSONObject json) throws JSONException {{"
    for field in own:
        yield from statement(f"{camel(field.name)} = {reading(field.name, hints[field.name], field.default)};")
    if record in CHECKED:
        yield "        check();"
    yield "    }"
    for java, name in arrays:
        yield from ("", f"    public {java} {name}() {{", f"        return {name}.clone();", "    }")


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def replaced(text: str, record: type[Any]) -> str:
    """Put the fields of a record in the place of those that stand in its class."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return (
        before + BEGIN + "\n".join(part(record)) + "\n" + (f"\n{END}{after}" if after else rest[rest.rindex("}\n") :])
    )


def main() -> int:
    known = {f"{one.__name__}.{field.name}" for one in RECORDS for field in msgspec.structs.fields(one)}
    assert known >= LEFT_OUT, f"the manifest has no {', '.join(sorted(LEFT_OUT - known))}"
    files = {FOLDER / f"{name}.java": record for record, name in RECORDS.items()}
    written = {file: replaced(file.read_text(), record) for file, record in files.items()}
    stale = [file for file, text in written.items() if file.read_text() != text]
    if "--check" in sys.argv[1:]:
        for file in stale:
            print(f"{file} is not what the manifest says: run python android_demo/core/manifest.py")
        return int(bool(stale))
    for file in stale:
        file.write_text(written[file])
    print(f"{len(stale)} of {len(written)} written in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
