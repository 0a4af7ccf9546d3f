"""Test the names that `import edge_client` offers: a name that goes or comes is a decision, and is taken here."""

import importlib
import subprocess
import sys

import pytest

import edge_client

NAMES = {
    "BadAnswer", "Bundle", "BundleError", "Client", "Columns", "Conditions", "DataError", "DirectionError", "Event",
    "PluginError", "ProgramInputError", "RuntimeMissing", "ServerError", "SpryError", "Stepper", "StoreError",
    "Task", "TextEncoder", "Training", "TrainingError", "Unauthorized", "Unreachable", "Update", "TrainingSession",
    "WrongResults", "__version__", "client_round", "cut_for", "directions_for", "estimate", "open_runtime",
    "parse_hours",
}  # fmt: skip


def test_the_names():
    assert set(edge_client.__all__) == NAMES
    assert len(edge_client.__all__) == len(NAMES)
    assert set(dir(edge_client)) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_is_there(name):
    value = getattr(edge_client, name)
    assert getattr(value, "__name__", "__version__") == name
    assert vars(edge_client)[name] is value, "the next look-up would import again"


def test_all_errors_are_among_them():
    errors = importlib.import_module("edge_client.errors")
    assert {name for name, value in vars(errors).items() if isinstance(value, type)} <= NAMES


def test_another_name_is_refused_as_by_any_module():
    with pytest.raises(AttributeError, match="module 'edge_client' has no attribute 'Clients'"):
        _ = edge_client.Clients
    with pytest.raises(ImportError, match="cannot import name 'Clients'"):
        exec("from edge_client import Clients")


def test_a_name_brings_no_more_than_it_needs():
    code = """
import sys
import edge_client
assert not [name for name in sys.modules if name.startswith("edge_client.")]
from edge_client import SpryError
loaded = {name for name in sys.modules if name.startswith("edge_client.")}
assert loaded == {"edge_client.distribution", "edge_client.errors"}, loaded
from edge_client import Stepper, estimate
print([name for name in ("tokenizers", "httpx", "typer", "rich", "onnxruntime", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
