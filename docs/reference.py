"""Writes the reference: the Python API from docstrings, the HTTP API from the server's OpenAPI document.

    python docs/reference.py --out reference/        needs: pip install -e '.[docs,export,server]'

`reference/index.html` leads to both; the site of the guides has them too. It fails, and names what is missing, when
something public has no description.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pdoc
from markupsafe import Markup, escape

import edge_client
from edge_client import __version__
from export.cli import quiet_libraries
from server.app import create_app

FOLDER = Path(__file__).parent
TEMPLATES = FOLDER / "site" / "templates"
PUBLIC = (
    "edge_client",
    *("edge_client.bundle.manifest", "edge_client.bundle.chain", "edge_client.data.examples"),
    *("edge_client.client.client", "edge_client.client.conditions", "edge_client.client.predictions"),
    *("edge_client.runtimes.runtime", "edge_client.estimators.estimator", "edge_client.estimators.directed"),
    *("edge_client.estimators.registry", "edge_client.wire.protocol"),
    *("edge_client.plugins", "edge_client.training.server_optimizers", "edge_client.commands.options.adapter"),
    *("edge_client.commands.doctor.machine", "edge_client.commands.bench.command"),
    *("edge_client.tasks.task", "edge_client.tasks.registry"),
    *("export.options", "export.pipeline", "export.merge", "export.errors", "export.adapt.adapter"),
    *("export.lower.target", "server.simulation.compute.learner"),
    *("server.app", "server.jobs.job", "server.jobs.settings", "server.policy.assignment", "server.rounds.rounds"),
    *("server.strategy.mean", "server.aggregation.rule", "server.settings"),
)
"""The surface of the device's SDK, and the modules that say what its parts and the server's are."""
FIRST = "Client", "Conditions", "Event", "Bundle", "open_runtime", "Stepper", "estimate", "cut_for", "directions_for"
"""What stands first on the page of the device's SDK; errors come last."""
FEW = 2
"""A method that takes fewer arguments may go by its name and types."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("reference"))
    out: Path = parser.parse_args().out
    quiet_libraries()
    document = create_app().openapi()
    missing = [*undescribed(map(importlib.import_module, PUBLIC)), *unnamed(document)]
    if missing:
        sys.exit("give a docstring to:\n" + "\n".join(missing))
    write_python(out / "python")
    (out / "http.html").write_text(page("http.html", document=document))
    (out / "index.html").write_text(page("index.html", modules=map(importlib.import_module, PUBLIC)))
    print(f"{out / 'index.html'}: {len(PUBLIC)} modules, {len(list(operations(document)))} routes")


# --- what must be described ------------------------------------------------------------------------------------------


def undescribed(modules: Iterator[ModuleType]) -> Iterator[str]:
    for module in modules:
        if not module.__doc__:
            yield module.__name__
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                yield from (f"{module.__name__}.{found}" for found in _silent(name, value))


def _silent(name: str, value: object) -> Iterator[str]:
    if inspect.isfunction(value) and not value.__doc__:
        yield name
    if inspect.isclass(value):
        generated = f"{value.__name__}("  # what dataclasses and named tuples say of themselves
        if not value.__doc__ or value.__doc__.startswith(generated):
            yield name
        for inner, member in vars(value).items():
            function = getattr(member, "__func__", member)
            public = inspect.isfunction(function) and not inner.startswith("_")
            if public and not inspect.getdoc(function) and len(inspect.signature(function).parameters) > FEW:
                yield f"{name}.{inner}"


def unnamed(document: dict[str, Any]) -> Iterator[str]:
    for operation in operations(document):
        if not operation["description"]:
            yield f"{operation['method']} {operation['path']}"
    for name, schema in document["components"]["schemas"].items():
        if not schema.get("description"):
            yield f"the message {name}"


# --- the HTTP API ----------------------------------------------------------------------------------------------------


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            callers = [name for needed in found.get("security", ()) for name in needed]
            yield {
                "id": found["operationId"],
                "method": method.upper(),
                "path": path,
                "tag": found["tags"][0],
                "description": found.get("description", ""),
                "callers": " or ".join(dict.fromkeys(callers)) or "anybody",
                "parameters": found.get("parameters", ()),
                "body": found.get("requestBody", {}).get("content", {}),
                "answers": {status: answer for status, answer in found["responses"].items() if status != "4XX"},
            }


def described(schema: dict[str, Any]) -> str:
    """A type in a few words, as HTML; other messages are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(described(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f"<code>{value}</code>" for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {described(schema.get('items', {}))}"
    limits = [f"{sign} {schema[name]:g}" for name, sign in LIMITS.items() if name in schema]
    return " ".join([{"null": "nothing", "object": "object"}.get(kind, kind), ", ".join(limits)]).strip()


LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": "&gt;",
    "maximum": "≤",
    "exclusiveMaximum": "&lt;",
    "minLength": "length ≥",
    "maxLength": "length ≤",
}


def codes() -> list[tuple[str, str, str]]:
    """The codes of problem documents, from the page that explains them."""
    rows = re.findall(r"^\| `([a-z-]+)` \| ([0-9X, ]+) \| (.+) \|$", troubleshooting(), re.MULTILINE)
    return [(code, status.strip(), meaning) for code, status, meaning in rows]


def troubleshooting() -> str:
    return (FOLDER / "troubleshooting.md").read_text()


# --- pages -----------------------------------------------------------------------------------------------------------


def write_python(out: Path) -> None:
    pdoc.render.configure(
        docformat="google", footer_text=f"spry {__version__}", template_directory=TEMPLATES / "python"
    )
    edge_client.__all__ = ordered(edge_client.__all__)
    private = [name for name in _modules("edge_client") if name not in PUBLIC]  # a package brings all that it holds
    pdoc.pdoc(*PUBLIC, *(f"!{re.escape(name)}$" for name in private), output_directory=out)
    for path in out.rglob("*.html"):
        path.write_text(_without_dead_links(path.read_text()))


def ordered(names: Sequence[str]) -> list[str]:
    """As somebody meets them."""

    def place(name: str) -> tuple[int, bool]:
        value = getattr(edge_client, name)
        is_error = isinstance(value, type) and issubclass(value, Exception)
        return (FIRST.index(name) if name in FIRST else len(FIRST), is_error)

    return sorted(names, key=place)


def _without_dead_links(text: str) -> str:
    """Without the links of pdoc to base classes and constructors that it does not show."""
    shown = set(re.findall(r'\bid="([^"]+)"', text))
    link = re.compile(r'<a [^>]*href="#([^"]+)"[^>]*>(.*?)</a>', re.DOTALL)
    return link.sub(lambda found: found[0] if found[1] in shown else found[2], text)


def _modules(package: str) -> Iterator[str]:
    for path in (FOLDER.parent / package).rglob("*.py"):
        yield ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)


def first_line(module: ModuleType) -> Markup:
    """Of its docstring, whose code is shown as code."""
    line = str(escape((module.__doc__ or "").strip().splitlines()[0]))
    return Markup(re.sub(r"(`+)(.+?)\1", r"<code>\2</code>", line))


def page(name: str, **values: Any) -> str:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True)
    environment.filters["operations"] = operations
    environment.filters["first_line"] = first_line
    environment.filters["described"] = lambda schema: Markup(described(schema))
    return environment.get_template(name).render(version=__version__, codes=codes(), **values)


if __name__ == "__main__":
    main()
