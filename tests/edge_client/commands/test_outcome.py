"""Test what is said of a command's end."""

import pytest

from edge_client.commands.outcome import outcome
from edge_client.errors import StoreError


def ending(error):
    def work():
        raise error

    return outcome(work)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory: close other programs"),
        (MemoryError("cannot allocate\n90 GB"), "cannot allocate 90 GB"),
        (OSError(28, "No space left on device", "x"), "No space left on device: x; free some space, or choose another"),
        (StoreError("what is kept\x1b[2J is locked"), "what is kept [2J is locked"),
    ],
)
def test_what_a_person_can_put_right_is_one_line(capsys, error, said):
    assert ending(error) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1


def test_a_defect_is_raised():
    with pytest.raises(ZeroDivisionError):
        ending(ZeroDivisionError())
