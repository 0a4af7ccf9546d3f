"""Test that options of earlier versions are answered in a line, and that kept ones are left out when read."""

import pytest

from edge_client.commands.options.retired import RETIRED, refuse, refuse_settings, without_retired
from edge_client.errors import SpryError


@pytest.mark.parametrize("asked", RETIRED)
def test_each_is_refused_in_one_line_that_says_what_happens_instead(asked):
    with pytest.raises(SpryError, match=f"^{asked} is gone: .+") as caught:
        refuse(asked)
    assert "\n" not in str(caught.value)


def test_what_there_is_passes():
    refuse("--peft lora")
    refuse_settings({"rounds": 3, "training": {"batch": 2}})


def test_settings_that_an_earlier_version_kept_are_read_without_what_is_gone():
    kept = {"rounds": 3, "training": {"batch": 2, "units_apart": True, "prefix_cache": False}}
    with pytest.raises(SpryError, match=r"training\.units_apart is gone"):
        refuse_settings(kept)
    assert without_retired(kept) == {"rounds": 3, "training": {"batch": 2}}
