"""Which package may import which, and what importing the light one costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "edge_client": set(),
    "export": {"edge_client"},
    "server": {"edge_client"},
}
NEVER = {"benchmarks", "tests"}
HEAVY = ("torch", "transformers", "peft", "torchao", "fastapi", "sqlalchemy", "onnx", "onnxruntime", "executorch")


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The top package and line of every absolute import, wherever it stands, and of `import_module("...")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((name.name.partition(".")[0], node.lineno) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0], node.lineno
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(module)), *_]
            ) if called in ("import_module", "__import__", "find_spec"):
                yield module.partition(".")[0], node.lineno


def forbidden(package: str, source: str) -> list[tuple[str, int]]:
    others = (MAY_IMPORT.keys() | NEVER) - MAY_IMPORT[package] - {package}
    return [(name, line) for name, line in imported(ast.parse(source)) if name in others]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_downwards(package):
    found = {
        f"{path.relative_to(ROOT)}:{line}": name
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in forbidden(package, path.read_text())
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import server",
        "import json, server.app",
        "from export.cli import export",
        "def lazy():\n    if True:\n        from server import rounds",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import export.graph.units",
        "import importlib\nimportlib.import_module('server.app')",
        "__import__('export')",
        "from tests import helpers",
    ],
)
def test_the_scan_sees_every_form_of_import(source):
    assert forbidden("edge_client", source)


def test_the_scan_lets_permitted_imports_pass():
    source = "import numpy\nfrom edge_client import errors\nfrom . import server\nfrom .export import x\n"
    assert forbidden("export", source) == []
    assert forbidden("edge_client", source) == []


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_light_package_imports_nothing_heavy():
    code = f"""
import importlib, pkgutil, sys
import edge_client, edge_client.commands.cli
for module in pkgutil.walk_packages(edge_client.__path__, "edge_client."):
    if module.name.rpartition(".")[2] not in ("onnx", "executorch", "torchscript"):
        importlib.import_module(module.name)
edge_client.commands.cli.run(["--help"])
print(*(name for name in {HEAVY!r} if name in sys.modules), sep=",")
"""
    assert python(code).splitlines()[-1] == ""


def test_options_of_an_export_and_its_adapters_cost_no_torch():
    code = f"""
import sys
from export.adapt.adapter import ADAPTERS, AdapterOptions
from export.options import ExportOptions
for name in ADAPTERS:
    AdapterOptions(name, examples="desk.jsonl").check()
print(len(ADAPTERS), [name for name in {HEAVY!r} if name in sys.modules])
"""
    count, _, heavy = python(code).strip().partition(" ")
    assert int(count) > 1
    assert heavy == "[]"


def test_importing_the_light_package_does_not_load_the_command():
    code = "import sys, edge_client; print([name for name in ('typer', 'rich', 'httpx') if name in sys.modules])"
    assert python(code).strip() == "[]"
