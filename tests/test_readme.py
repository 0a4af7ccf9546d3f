"""The README, the pages that it names and the commands must name the same options."""

import re
from pathlib import Path

import pytest

from edge_client.bundle import Bundle
from edge_client.cli import SUBCOMMANDS, build
from export.options import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTED = {"join": "client.md", "predict": "client.md"}
"""Commands whose options stand in a page of their own."""


def options(command) -> set[str]:
    """Every long option of a command and of its subcommands."""
    found = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for nested in getattr(command, "commands", {}).values():
        found |= options(nested)
    return {name for name in found if name.startswith("--")} - {"--help"}


def page(name: str) -> str:
    """What describes a command: the README, or a page of its own."""
    return (ROOT / "docs" / DOCUMENTED[name]).read_text() if name in DOCUMENTED else README


def named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def loaded(name: str):
    from edge_client.cli import installed, load

    return load(installed()[name])


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_option_of_a_command_stands_on_its_page(name):
    missing = {option for option in options(loaded(name)) if not re.search(rf"{option}\b", page(name))}
    assert not missing, f"spry {name}: describe {sorted(missing)} in {DOCUMENTED.get(name, 'README.md')}"


def test_every_option_that_is_described_exists():
    known = set.union(*(options(loaded(name)) for name in SUBCOMMANDS)) | {"--cov", "--check"}
    assert named(README) <= known, f"README.md names options that no command has: {sorted(named(README) - known)}"
    for other in set(DOCUMENTED.values()):
        own = set.union(*(options(loaded(name)) for name, where in DOCUMENTED.items() if where == other))
        unknown = named((ROOT / "docs" / other).read_text()) - own
        assert not unknown, f"docs/{other} names options that its commands do not have: {sorted(unknown)}"


def test_every_subcommand_and_method_stands_in_the_readme():
    assert build() is not None
    assert all(f"spry {name}" in README for name in SUBCOMMANDS)
    assert all(f"`{method}`" in README for method in METHODS)


def test_methods_named_for_the_help_are_those_that_exist():
    from export.adapters import METHODS as DEFINED

    assert tuple(DEFINED) == METHODS


def test_the_step_in_the_readme_runs(bundle):
    """On the tests' small bundle: its shapes and units are not those of the README's."""
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    batch, length = Bundle.open(bundle).manifest.shapes[0]
    source = source.replace('Path("bundle")', f"Path({str(bundle)!r})")
    source = source.replace("length=64", f"length={length}").replace("batch=8", f"batch={batch}")
    source = source.replace("np.zeros(8,", f"np.zeros({batch},").replace("[4, 5]", "[2, 3]")
    shown = []
    exec(compile(source, "README.md", "exec"), {"print": lambda *values: shown.append(values)})
    ((loss, shapes),) = shown
    assert loss > 0
    assert len(shapes) > 2
