"""The README and the commands must name the same options."""

import dataclasses
import re
from pathlib import Path

import pytest

from edge_client.bundle.folder import Bundle
from edge_client.commands.cli import SUBCOMMANDS, build
from edge_client.estimators.registry import ESTIMATORS
from edge_client.training.server_optimizers import SERVER_OPTIMIZERS
from edge_client.wire.protocol import Training
from export.adapt.adapter import ADAPTERS
from server.aggregation.registry import AGGREGATION_RULES
from server.jobs.settings import JobSettings
from server.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = README + "".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))


def options(command) -> set[str]:
    """Every long option of a command and of its subcommands."""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    found = {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts)}
    for nested in getattr(command, "commands", {}).values():
        found |= options(nested)
    return {name for name in found if name.startswith("--")} - {"--help"}


def loaded(name: str):
    from edge_client.commands.cli import installed, load

    return load(installed()[name])


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_option_of_a_command_is_documented(name):
    missing = {option for option in options(loaded(name)) if not re.search(rf"{option}\b", DOCUMENTS)}
    assert not missing, f"spry {name}: describe {sorted(missing)} in README.md or docs/"


FOREIGN = (
    r"(?:sudo |~/spry/bin/)?(?:pip|make|openssl|journalctl|scp|curl|npm|docker|flwr|flower-super\w+|systemctl"
    r"|kubectl|helm|llama-cli|tensorboard|python convert_hf\w+\.py)\b"
)
"""Programs whose options are their own, in a line of a block or between backticks."""


def of_ours(text: str) -> str:
    """The pages without other programs' commands."""
    joined = text.replace("\\\n", " ")
    return re.sub(rf"^\s*{FOREIGN}.*$|`{FOREIGN}[^`]*`", "", joined, flags=re.MULTILINE)


def test_every_documented_option_exists():
    scripts = "".join(path.read_text() for folder in ("benchmarks", "docs") for path in (ROOT / folder).rglob("*.py"))
    known = options(build()).union(*(options(loaded(name)) for name in SUBCOMMANDS)) | {"--cov", "--check", "--help"}
    known |= {"--cacert", "--system"}  # of curl and adduser, in the middle of a sentence
    known |= set(re.findall(r'add_argument\(\s*"(--[a-z0-9-]+)"', scripts))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", of_ours(DOCUMENTS)))
    assert named <= known, f"README.md or docs/ name options that no command has: {sorted(named - known)}"


def test_the_options_of_spry_itself_are_documented():
    assert {"--version", "--show-completion"} <= options(build())
    assert not [option for option in options(build()) if option not in README]


def test_every_setting_is_documented():
    document = (ROOT / "docs" / "server.md").read_text()
    names = [*JobSettings.model_fields, *(f"SPRY_{name.upper()}" for name in Settings.model_fields)]
    names += [field.name for field in dataclasses.fields(Training)]
    assert not [name for name in names if not re.search(rf"\b{name}\b", document)]


def test_every_estimator_aggregation_and_mean_is_documented():
    document = (ROOT / "docs" / "server.md").read_text()
    assert all(f"`{name}`" in document for name in (*ESTIMATORS, *SERVER_OPTIMIZERS, *AGGREGATION_RULES))


def test_every_subcommand_and_method_stands_in_the_readme():
    assert build() is not None
    assert all(f"spry {name}" in DOCUMENTS for name in SUBCOMMANDS)
    assert all(f"`{method}`" in README for method in ADAPTERS)


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
