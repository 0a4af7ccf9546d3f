"""One noun, one thing: a name means the same wherever it stands."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOCOLS = {"Bottleneck", "Computed", "Differentiated"}
"""What `server` needs of a result, and the result of `export`, which it does not import: one thing, described twice."""


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("edge_client", "export", "server"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice.keys() == PROTOCOLS, twice


RIDDLES = ("What ", "Of ", "Those ", "Who ", "Whose ", "Whom ")
IN_PLAIN_WORDS = "edge_client", "server/strategy", "server/aggregation", "server/rounds", "server/privacy"


def test_public_docstrings_begin_with_what_something_does_or_is():
    """A docstring that begins with a question word says what something is about, and not what it does."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for package in IN_PLAIN_WORDS
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if (ast.get_docstring(node) or "").startswith(RIDDLES)
    ]
    assert not found
