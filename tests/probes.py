"""Coverage of our own lines on Pythons before 3.12, where a tracer slows every line of every library down.

Each statement of a measured module is preceded by one that notes its line, before the module is compiled; what ran is
given to coverage when the tests have ended. Libraries run as fast as without. A plugin of pytest, as `pyproject.toml`
says: conftest files import what is measured.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from coverage import Coverage, CoverageData

PACKAGES = "edge_client", "export", "server"
NOTES = "_lines_that_ran_"
"""A name that every module sees."""


class Probes:
    """A finder of packages that nothing has imported yet; goes before the finders of `sys.meta_path`."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)
        self.ran = bytearray()
        self.places: dict[str, tuple[int, int]] = {}  # a file's lines in `ran`

    def start(self) -> None:
        setattr(builtins, NOTES, self.ran)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path, self)
        return spec

    def noting(self, source: bytes, path: str) -> CodeType:
        """The module, with the notes in it."""
        if path not in self.places:
            self.places[path] = (len(self.ran), count := source.count(b"\n") + 2)
            self.ran.extend(bytes(count))
        tree = _noting(ast.parse(source), self.places[path][0])
        return compile(tree, path, "exec", dont_inherit=True)

    def lines(self, path: str) -> list[int]:
        """That ran, of those that a statement begins in."""
        start, count = self.places[path]
        return [line for line in range(count) if self.ran[start + line]]

    def tell(self, data: CoverageData) -> None:
        """All files of the packages, those too of which nothing ran."""
        data.add_lines({path: self.lines(path) for path in self.places})
        for name in self.packages:
            for folder in find_spec(name).submodule_search_locations:
                data.touch_files(map(str, Path(folder).rglob("*.py")))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, probes: Probes) -> None:
        super().__init__(name, path)
        self.probes = probes

    def get_code(self, fullname: str) -> CodeType:
        return self.probes.noting(self.get_data(self.path), self.path)


def _noting(tree: ast.Module, start: int) -> ast.Module:
    for node in reversed(list(ast.walk(tree))):  # what is inside first
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # that of a lambda is none
                noted = [_noted(each, start, first=name == "body" and each is block[0]) for each in block]
                setattr(node, name, [statement for each in noted for statement in each])
        # An `except` or a `case` is looked at before its block begins, and so were those above it.
        if isinstance(node, ast.Try):
            _begin([(handler.lineno, handler.body) for handler in node.handlers], start)
        elif isinstance(node, ast.Match):
            _begin([(case.pattern.lineno, case.body) for case in node.cases], start)
    return ast.fix_missing_locations(tree)


def _noted(statement: ast.stmt, start: int, *, first: bool) -> list[ast.stmt]:
    if first and ast.get_docstring(ast.Module([statement], [])) is not None:
        return [statement]
    lines = {statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))}
    notes = [_note(line, start, statement) for line in sorted(lines)]
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":  # nothing may stand before it
        return [statement, *notes]
    return [*notes, statement]


def _begin(blocks: list[tuple[int, list[ast.stmt]]], start: int) -> None:
    looked_at: list[int] = []
    for line, block in blocks:
        looked_at.append(line)
        block[:0] = [_note(each, start, block[0]) for each in looked_at]


def _note(line: int, start: int, where: ast.stmt) -> ast.stmt:
    place = ast.Subscript(ast.Name(NOTES, ast.Load()), ast.Constant(start + line), ast.Store())
    return ast.copy_location(ast.Assign([place], ast.Constant(1)), where)


# --- the plugin ------------------------------------------------------------------------------------------------------


class Measuring:
    """In place of the tracer of pytest-cov, which writes and reports what it is told here."""

    def __init__(self) -> None:
        self.probes = Probes(PACKAGES)
        self.probes.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self.coverage = Coverage.current()
        while running := Coverage.current():  # two where xdist starts processes; one that was paused goes on by itself
            running.stop()

    @pytest.hookimpl(wrapper=True, trylast=True)  # what pytest-cov does afterwards is around this
    def pytest_runtestloop(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self.probes.tell(self.coverage.get_data())


@pytest.hookimpl(tryfirst=True)  # and yet after pytest-cov, before any conftest file
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    plugin = early_config.pluginmanager.getplugin("_cov")
    if plugin and not early_config.known_args_namespace.no_cov and sys.version_info < (3, 12):
        early_config.pluginmanager.register(Measuring())
