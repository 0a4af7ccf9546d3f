from datetime import datetime, time
from time import monotonic

import pytest

from edge_client.client.conditions import ASK_AGAIN, Conditions, Machine, parse_hours
from edge_client.errors import SpryError


def machine(folder, *supplies: dict, available: int | None = 100_000) -> Machine:
    for number, supply in enumerate(supplies):
        (folder / "supplies" / str(number)).mkdir(parents=True)
        for name, value in supply.items():
            (folder / "supplies" / str(number) / name).write_text(value + "\n")
    (folder / "supplies").mkdir(exist_ok=True)
    if available is not None:
        (folder / "meminfo").write_text(f"MemTotal: 500000 kB\nMemAvailable:   {available} kB\n")
    return Machine(folder / "supplies", folder / "meminfo")


def at(hour: int, minute: int = 0):
    return lambda: datetime(2024, 1, 1, hour, minute)  # noqa: DTZ001 -- the device's clock


# --- hours ---


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22-6", (22, 23, 0, 5), (6, 12, 21)),
        ("9-17", (9, 16), (8, 17, 23)),
        ("0-24", (), ()),
        ("22:30-6:15", (23, 6), (22, 7)),
        ("20-24", (20, 23), (0, 19)),
    ],
)
def test_hours(text, inside, outside):
    if text == "0-24":
        with pytest.raises(SpryError, match="begin when they end"):
            parse_hours(text)
        return
    hours = parse_hours(text)
    assert all(time(hour) in hours for hour in inside)
    assert not any(time(hour) in hours for hour in outside)


@pytest.mark.parametrize("text", ["", "22", "22-", "25-6", "22-6:70", "24:30-6", "a-b", "22-6-7", "-1-5"])
def test_what_are_no_hours(text):
    with pytest.raises(SpryError, match="must look like 22-6"):
        parse_hours(text)


def test_outside_its_hours_a_device_waits_until_they_begin(tmp_path):
    conditions = Conditions(hours=parse_hours("22-6"), machine=machine(tmp_path), clock=at(20, 30))
    refusal = conditions.refusal()
    assert refusal.seconds == 90 * 60
    assert refusal.reason == "it is outside the hours 22:00-06:00"
    assert Conditions(hours=parse_hours("22-6"), machine=machine(tmp_path), clock=at(23)).refusal() is None


# --- memory ---


def test_memory_is_the_smaller_of_what_is_free_and_allowed(tmp_path):
    free = machine(tmp_path)
    assert Conditions(machine=free).memory() == 102_400_000
    assert Conditions(machine=free, max_memory=50).memory() == 50
    assert Conditions(machine=free, max_memory=10**12).memory() == 102_400_000


def test_a_system_without_meminfo(tmp_path):
    assert machine(tmp_path, available=None).free_memory() > 0


# --- power ---

PLUGGED, UNPLUGGED = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
FULL, DRAINING = {"type": "Battery", "status": "Full"}, {"type": "Battery", "status": "Discharging"}
MOUSE = {"type": "Battery", "status": "Discharging", "scope": "Device"}


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ((), "mains"),
        ((PLUGGED, DRAINING), "mains"),
        ((UNPLUGGED, DRAINING), "battery"),
        ((DRAINING,), "battery"),
        ((FULL,), "mains"),
        ((MOUSE,), "mains"),
        (({},), "mains"),
    ],
)
def test_power(tmp_path, supplies, expected):
    found = machine(tmp_path, *supplies)
    assert found.power() == expected
    refusal = Conditions(only_charging=True, machine=found).refusal()
    assert (refusal is not None) == (expected == "battery")


def test_a_system_that_tells_nothing_of_its_power(tmp_path):
    found = Machine(tmp_path / "none", tmp_path / "none")
    assert found.power() == "unknown"
    assert "does not tell its power" in Conditions(only_charging=True, machine=found).refusal().reason


# --- network ---


def networkmanager(folder, monkeypatch, answer: str) -> None:
    """A `busctl` that answers as the system's would."""
    tool = folder / "bin" / "busctl"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("echo u 1", True), ("echo u 2", False), ("echo u 3", True), ("echo u 0", None), ("exit 1", None)],
)
def test_metered_networks(tmp_path, monkeypatch, answer, expected):
    networkmanager(tmp_path, monkeypatch, answer)
    assert Machine().metered() is expected
    for flag in (True, False):
        known = flag if expected is None else expected
        conditions = Conditions(unmetered_only=True, metered=flag, machine=machine(tmp_path))
        assert conditions.is_metered() == known
        assert (conditions.refusal() is not None) == known


def test_the_network_is_asked_about_twice_a_minute(tmp_path, monkeypatch):
    networkmanager(tmp_path, monkeypatch, f"echo x >> {tmp_path}/asked; echo u 1")
    here, start = Machine(), monotonic()
    for seconds, times in (0, 1), (ASK_AGAIN - 1, 1), (ASK_AGAIN + 1, 2), (ASK_AGAIN + 2, 2):
        monkeypatch.setattr("edge_client.client.conditions.monotonic", lambda seconds=seconds: start + seconds)
        assert here.metered() is True
        assert (tmp_path / "asked").read_text() == "x\n" * times
    assert Machine() == here


def test_a_system_without_networkmanager(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Machine().metered() is None
