"""Simulated runs sent to TensorBoard."""

import json

import pytest

from edge_client.commands.cli import run
from tests.server.simulation.conftest import config, rounds, write_run
from tests.server.sinks.test_sinks import in_tensorboard


def test_runs_are_sent_under_their_folders_and_once(tmp_path, capsys):
    runs, boards = tmp_path / "runs", tmp_path / "boards"
    written = {place: rounds(5) for place in ("one/seed-1", "two/seed-1")}
    for place, lines in written.items():
        write_run(runs / place, config(), lines)
    to = ["report", str(runs), "--to", f"tensorboard:{boards}"]
    assert run(to) == 0
    assert run([*to, "--json"]) == 0
    first, _, second = capsys.readouterr().out.partition("\n")
    assert first.endswith(f"new points are in tensorboard:{boards}")
    assert json.loads(second) == {"to": f"tensorboard:{boards}", "sent": 0}
    for place, lines in written.items():
        found = in_tensorboard(boards / place)
        for line in lines:
            for name in ("accuracy", "seconds", "bytes_up"):
                if line.get(name) is not None:
                    assert found[line["round"], name][0] == pytest.approx(line[name], rel=1e-6)
        assert {number for number, _ in found} == {line["round"] for line in lines}
