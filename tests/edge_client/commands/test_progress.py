"""Test the progress of long work without a terminal."""

import re
import time

from edge_client.commands import progress
from edge_client.commands.progress import Terminal, is_of_stage


def test_a_log_says_how_far_a_stage_is_and_how_long_it_still_takes(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with Terminal().shown() as shown, shown.stage("verify", 4):
        time.sleep(0.2)
        shown.advance("onnx: loss")
        time.sleep(0.2)
    first, *others, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"verify, 0 of 4: \d+ s so far", first)
    assert any(re.fullmatch(r"verify, 1 of 4 \(onnx: loss\): \d+ s so far, about \d+ s left", line) for line in others)
    assert re.fullmatch(r"verify: done in \d+\.\d s", last)
    assert all(is_of_stage(line) for line in (first, *others, last))
