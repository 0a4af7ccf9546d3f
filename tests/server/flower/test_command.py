"""`spry flower new`."""

import ast
import sys

import pytest
from typer.testing import CliRunner

from server.errors import FlowerError
from server.flower.command import APPS, app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def new(folder):
    return CliRunner().invoke(app, ["new", str(folder)], catch_exceptions=False)


def test_an_app_names_its_parts_and_its_own_folder(tmp_path):
    folder = tmp_path / "fleet"
    told = new(folder).output
    assert f"flwr run {folder} --stream" in told
    assert {path.name for path in folder.iterdir()} == {*APPS, "pyproject.toml"}
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "fleet"
    config = project["tool"]["flwr"]["app"]["config"]
    assert config["bundle"] == f"{folder}/bundle"
    assert config["data"] == f"{folder}/rows/{{partition-id}}.jsonl"
    for part in project["tool"]["flwr"]["app"]["components"].values():
        module, _, name = part.partition(":")
        tree = ast.parse((folder / f"{module}.py").read_text())
        assert name in {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}


def test_nothing_is_written_over(tmp_path):
    folder = tmp_path / "fleet"
    new(folder)
    with pytest.raises(FlowerError, match="fleet exists"):
        new(folder)
    with pytest.raises(FlowerError, match="small letters, digits and -"):
        new(tmp_path / "My Fleet")
    assert [path.name for path in tmp_path.iterdir()] == ["fleet"]
