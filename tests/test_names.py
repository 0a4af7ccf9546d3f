"""Names and docstrings that a newcomer can follow."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = "edge_client", "export", "server"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
RIDDLE = re.compile(
    r"\s*(What|Of|Those|Who|Whose|Whom|By|In|As|For|With|From|To|On|At|Up|Before|After|Without|Nothing|Its|So|Through|If|"
    r"Between|Behind|Not|How|Where|When|Why|Until|Because|Beside|Under|Along)\s"
)


QUESTION = re.compile(r"\s*(What|Of|Those|Who|Whose|Whom|How|Where|When|Why)\s")


@cache
def definitions(package: str) -> list[tuple[Path, Definition]]:
    return [
        (path.relative_to(ROOT), node)
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Definition)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_public_classes_of_a_package_have_one_name(package):
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in definitions(package):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(f"{path}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_what_something_does_or_is(package):
    """A docstring that begins with a preposition or a question word says what something is about, not what it is."""
    found = [
        f"{path.relative_to(ROOT)}:{line.lineno}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | Definition)
        for line in node.body
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and RIDDLE.match(str(line.value.value))
    ]
    assert not found


@pytest.mark.parametrize("folder", ["benchmarks", "tests"])
def test_docstrings_of_scripts_and_helpers_begin_with_no_question_word(folder):
    """A test's own docstring may go on with its name."""
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | Definition) and not getattr(node, "name", "").startswith("test_")
        if (text := ast.get_docstring(node)) and QUESTION.match(text)
    ]
    assert not found
