"""Groups of options, as a command line gives them and as its help shows them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from edge_client.commands.cli import installed, load
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.commands.options.groups import OptionGroup, grouped, words
from edge_client.commands.options.panels import PanelCommand


@dataclass(frozen=True)
class Size(OptionGroup):
    title = "Size"

    width: Annotated[int, typer.Option(min=1, help="How wide.")]
    names: Annotated[tuple[str, ...], typer.Option("--called", help="Names, between commas.")] = ("a", "b")
    high: Annotated[bool, typer.Option("--high/--flat", help="Whether it stands.")] = True


def app(command) -> typer.Typer:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(cls=PanelCommand)(command)
    return made


@pytest.fixture
def given():
    """Return what a command with groups was handed."""
    return []


@pytest.fixture
def run(given):
    @grouped
    def show(
        place: Annotated[Path, typer.Argument(help="Where.")],
        size: Size,
        other: Annotated[AdapterOptions, {"alpha": "--other-alpha"}],
        alpha: Annotated[float, typer.Option(help="Its own.")] = 2.0,
        size_of: Annotated[list[str] | None, typer.Option("--size", help="A name that a parameter has.")] = None,
    ) -> None:
        """Show it.

        Example: show x --width 3
        """
        given.append((place, size, other, alpha, size_of))

    return lambda *args: CliRunner().invoke(app(show), [str(arg) for arg in args])


def test_a_command_is_handed_its_groups_whole(run, given):
    assert run("x", "--width", 3).exit_code == 0
    other = "y --width 4 --called c,d, --flat --other-alpha 7 --alpha 1 --peft ia3 --size 1 --size 2"
    assert run(*other.split()).exit_code == 0
    assert given == [
        (Path("x"), Size(3), AdapterOptions(), 2.0, None),
        (Path("y"), Size(4, ("c", "d"), high=False), AdapterOptions("ia3", alpha=7.0), 1.0, ["1", "2"]),
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x",), "Missing option '--width'"),
        (("x", "--width", 0), "Invalid value for '--width'"),
        (("x", "--width", "wide"), "Invalid value for '--width'"),
        (("x", "--width", 1, "--names", "a"), "No such option: --names"),
    ],
)
def test_wrong_values_are_told_by_the_options_names(run, given, args, message):
    done = run(*args)
    assert done.exit_code == 2
    assert message in done.output
    assert not given


def test_the_help_has_a_heading_for_each_group(run):
    text = run("--help").stdout
    assert re.findall(r"^([A-Z]\w*):$", text, re.MULTILINE) == ["Arguments", "Options", "Size", "Adapter"]
    below = dict(zip(*[iter(re.split(r"^([A-Z]\w*):$", text, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert re.findall(r"^  (--[a-z-]+)", below["Options"], re.MULTILINE) == ["--alpha", "--size", "--help"]
    assert re.findall(r"^  (--[a-z-]+)", below["Size"], re.MULTILINE) == ["--width", "--called", "--high"]
    assert "How wide.  [x>=1; required]" in below["Size"]
    assert "[default: a,b]" in below["Size"]
    assert "[default: high]" in below["Size"]
    assert "--other-alpha <float>" in below["Adapter"]
    assert "Example: show x --width 3" in text


def test_two_options_of_one_name_are_refused():
    def twice(first: Size, second: Size) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'width'"):
        grouped(twice)


def test_words():
    assert words(" a, b,,a ,") == ("a", "b", "a")


def command(name: str):
    *groups, last = name.split()
    found = load(installed()[groups[0] if groups else last])
    return found.commands[last] if groups else found


@pytest.mark.parametrize("name", ["simulate", "export", "job create", "bench estimate"])
def test_long_commands_show_all_options_in_groups(name):
    found = command(name)
    with found.make_context(name, [], resilient_parsing=True) as context:
        context.terminal_width = 80
        text = found.get_help(context)
    assert max(map(len, text.splitlines())) <= 80
    headings = [block.splitlines()[0] for block in text.split("\n\n") if re.match(r"[A-Z][a-z ]+:\n", block)]
    assert len(headings) == len(set(headings)) >= 5
    options = text[re.search("^[A-Z][a-z ]+:$", text, re.MULTILINE).start() :]  # after the example
    shown = re.sub(r"(\w)- (?=\w)", r"\1-", " ".join(options.split()))  # lines also end behind a hyphen
    for parameter in (one for one in found.params if not getattr(one, "hidden", False)):
        assert len(re.findall(rf"^  {parameter.opts[0]}\b(?!-)", options, re.MULTILINE)) == 1
        assert " ".join(parameter.help.split()) in shown
