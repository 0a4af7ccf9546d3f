"""Test what `spry doctor` says of a machine."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_client import __version__
from edge_client.commands.doctor import machine as checks
from edge_client.commands.doctor.machine import Scope, disk, machine, writable
from edge_client.distribution import install_command
from edge_client.runtimes import runtime
from edge_client.runtimes.processors import cpu_features, this_processor

PI_5 = (
    "processor\t: 0\nFeatures\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\n"
)
PI_4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n"
CLOUD = "processor\t: 0\nflags\t\t: fpu vme sse4_2 avx avx2 avx512f avx512_vnni avx_vnni\n"


def test_the_system_names_the_bundles_that_are_for_it() -> None:
    (system,) = [finding for finding in machine(Scope()) if finding.name == "system"]
    assert system.found.endswith(f"bundles for {this_processor()}")


def test_this_machine(tmp_path):
    found = {finding.name: finding for finding in machine(Scope(home=tmp_path))}
    assert [name for name, finding in found.items() if finding.state == "problem"] == []
    assert found["spry"].found.startswith(f"{__version__}, Python 3.")
    assert "onnxruntime" in found["runtime onnx"].found
    assert found["runtime onnx"].found.endswith("loads")
    assert "not loaded" in found["runtime torchscript"].found
    assert "available" in found["memory"].found
    assert all(bool(finding.advice) == (finding.state != "ok") for finding in found.values())


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (PI_5, ["NEON", "dot product"]),
        (PI_4, ["NEON"]),
        (CLOUD, ["AVX2", "AVX-512", "VNNI"]),
        ("model name : something else\n", []),
    ],
)
def test_features_of_processors(cpuinfo, expected):
    assert cpu_features(cpuinfo) == expected


def test_a_32_bit_system(monkeypatch):
    monkeypatch.setattr("sys.maxsize", 2**31 - 1)
    found = next(finding for finding in machine(Scope()) if finding.name == "system")
    assert found.state == "problem"
    assert "64-bit" in found.advice


def test_little_memory(tmp_path):
    """By the system's own file, with other numbers."""
    for available, state in ((300_000, "ok"), (200_000, "warning"), (50_000, "problem")):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal: 500000 kB\nMemAvailable: {available} kB\n")
        found = checks._memory(checks.Machine(meminfo=meminfo))
        assert found.state == state
        assert ("--max-memory" in found.advice) == (state != "ok")


def test_a_home_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert writable("home", file / "below").state == "problem"
    assert writable("home", tmp_path / "a" / "b").found.endswith("will be made")
    assert not (tmp_path / "a").exists()
    assert disk("disk", tmp_path / "a" / "b").state == "ok"


@pytest.mark.parametrize(("free", "state"), [(500 * 10**6, "warning"), (10**6, "problem")])
def test_a_full_disk(free, state, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    assert disk("disk", tmp_path).state == state


def test_a_machine_without_runtimes(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "find_spec", lambda _: None)
    found = {one.name: one for one in machine(Scope(home=tmp_path)) if one.name.startswith("runtime")}
    assert (found["runtime onnx"].state, found["runtime onnx"].advice) == ("problem", f"run: {install_command('onnx')}")
    assert found["runtime executorch"].state == "ok"
    assert runtime.RUNTIMES["executorch"].command() in found["runtime executorch"].found
    server = [one.state for one in machine(Scope(home=tmp_path, data=tmp_path)) if one.name == "runtime onnx"]
    assert server == ["warning"]


def test_libraries_that_do_not_load(tmp_path: Path, monkeypatch):
    (tmp_path / "for_another_processor.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "SIGILL" in checks._fails_to_load("for_another_processor")
    assert "No module named 'not_there'" in checks._fails_to_load("not_there")
    assert checks._fails_to_load("numpy") == ""
