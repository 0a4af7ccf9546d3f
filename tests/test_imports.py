"""Which package may import which, and what importing the light one costs."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "edge_client": set(),
    "export": {"edge_client"},
    "server": {"edge_client"},
}
NEVER = {"benchmarks", "tests"}
FREE_OF_CIRCLES = ["edge_client", "export", "server", "server.rounds", "server.simulation", "server.storage"]
ORDERED = ["edge_client", "export", "server", "server.simulation"]
BESIDE = {"flower", "simulation"}
"""Hosts of rounds, which take from most rooms of the server."""
REGISTERS = {"export/dual/rules", "export/lower/onnx/rules", "export/lower/executorch/formulations"}
HEAVY = ("torch", "transformers", "peft", "torchao", "fastapi", "sqlalchemy", "onnx", "onnxruntime", "executorch",
         "executorch_numpy_runtime")  # fmt: skip


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


# --- rooms -----------------------------------------------------------------------------------------------------------


def modules_of(package: str) -> dict[str, Path]:
    """Every module below a package, by its dotted name."""
    found = {}
    for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def targets(module: str, path: Path, known: Iterable[str]) -> Iterator[str]:
    """The modules that one imports, wherever the import stands."""
    base = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        if isinstance(node, ast.ImportFrom):
            above = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                whole = f"{source}.{name.name}"
                yield whole if whole in known else source


def rooms_of(package: str) -> dict[str, set[str]]:
    """A package's folders and single modules, each with those that it takes from."""
    depth, modules = package.count(".") + 1, modules_of(package)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        for target in targets(module, path, modules):
            own, other = module.split(".")[depth:], target.split(".")[depth:]
            if target in modules and own and other and own[0] != other[0]:
                graph.setdefault(own[0], set()).add(other[0])
    return graph


def listed_rooms(package: str) -> list[set[str]]:
    """The rooms of a package as CONTRIBUTING's table lists them, row by row."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[re.search(rf"^`{package.replace('.', '/')}/`", text, re.MULTILINE).start() :]
    rows = table[table.index("|---|") :].split("\n\n")[0].splitlines()[1:]
    return [set(re.findall(r"`([a-z_]+)/[a-z/]*`", row.split("|")[1])) for row in rows]


@pytest.mark.parametrize("package", FREE_OF_CIRCLES)
def test_rooms_form_no_circle(package):
    TopologicalSorter(rooms_of(package)).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", ORDERED)
def test_a_room_imports_from_those_above_it_in_the_table(package):
    order: dict[str, int] = {}
    for row, rooms in enumerate(listed_rooms(package)):
        order |= {room: row for room in rooms if room not in order}
    folders = {path.parent.name for path in (ROOT / package.replace(".", "/")).glob("*/__init__.py")}
    assert folders - BESIDE <= order.keys()
    graph = rooms_of(package)
    assert not [
        f"{room} imports from {other}"
        for room in graph.keys() & order.keys()
        for other in graph[room] & order.keys()
        if order[other] > order[room]
    ]


def test_a_circle_of_rooms_is_found(tmp_path, monkeypatch):
    for name, source in {"a": "from house.b.y import z", "b": "def later():\n    from ..a import x"}.items():
        (tmp_path / "house" / name).mkdir(parents=True)
        (tmp_path / "house" / name / "x.py").write_text(source)
        (tmp_path / "house" / name / "y.py").write_text("z = 1")
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)
    assert rooms_of("house") == {"a": {"b"}, "b": {"a"}}
    with pytest.raises(CycleError):
        test_rooms_form_no_circle("house")


HOSTED = ("time", "threading", "asyncio", "socket", "httpx", "os", "edge_client.store", "edge_client.rounds",
          "edge_client.client", "edge_client.wire.server")  # fmt: skip


def test_a_clients_round_knows_no_network_disk_clock_or_thread():
    """What hosts a round has these: the device client, the simulator, somebody's notebook."""
    taken = {
        f"{path.name}: {name}"
        for path in (ROOT / "edge_client/training").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                     [one.name for one in node.names] if isinstance(node, ast.Import) else [])
        if any(name == known or name.startswith(f"{known}.") for known in HOSTED)
    }  # fmt: skip
    assert not taken


def statements(path: Path) -> list[ast.stmt]:
    """Return a module's statements other than its docstring."""
    tree = ast.parse(path.read_text())
    return tree.body[1:] if ast.get_docstring(tree) else tree.body


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_rooms_door_holds_nothing(package):
    """What a room has stands in its modules; a family of rules is registered where its package is imported."""
    doors = sorted(path for path in (ROOT / package).rglob("__init__.py") if path.parent.name != package)
    full = {str(path.parent.relative_to(ROOT)) for path in doors if statements(path)}
    assert full <= REGISTERS


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_light_package_imports_nothing_heavy():
    code = f"""
import importlib, pkgutil, sys
import edge_client, edge_client.commands.cli
for module in pkgutil.walk_packages(edge_client.__path__, "edge_client."):
    if module.name.rpartition(".")[2] not in ("onnx", "executorch", "executorch_light", "torchscript"):
        importlib.import_module(module.name)
edge_client.commands.cli.run(["--help"])
print(*(name for name in {HEAVY!r} if name in sys.modules), sep=",")
"""
    assert python(code).splitlines()[-1] == ""


def test_options_of_an_export_and_its_adapters_cost_no_torch():
    code = f"""
import sys
from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import ADAPTERS, check_adapter
from export.options import ExportOptions
for name in ADAPTERS:
    check_adapter(AdapterOptions(name, examples="desk.jsonl"))
print(len(ADAPTERS), [name for name in {HEAVY!r} if name in sys.modules])
"""
    count, _, heavy = python(code).strip().partition(" ")
    assert int(count) > 1
    assert heavy == "[]"


def test_importing_the_light_package_does_not_load_the_command():
    code = "import sys, edge_client; print([name for name in ('typer', 'rich', 'httpx') if name in sys.modules])"
    assert python(code).strip() == "[]"


def test_a_command_that_talks_to_a_server_does_not_load_what_draws_on_terminals():
    code = """
import sys
from edge_client.commands import cli
cli.without_httpx_command()
import edge_client.commands.join, httpx
print([name for name in ("click", "rich", "pygments") if name in sys.modules], httpx.Client().is_closed)
"""
    assert python(code).strip() == "[] False"


@pytest.mark.parametrize("module", ["server.start.up", "server.cli.devices", "server.cli.job"])
def test_a_command_that_asks_a_server_does_not_load_what_runs_one(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(code).strip() == "[]"
