"""Units as systemd reads them."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edge_client.commands.service.systemd import Service, plain, quoted, variable

ODD = "a \"quoted\" 100% folder; with #, $HOME, \\ and 'apostrophes'"
SERVICE = Service(
    description="SPRY: 100% of a test",
    command=("/bin/true", "join"),
    folder=Path("/var/lib/spry-join"),
    secrets=Path("/etc/spry/spry-join.env"),
    user="daemon",
    memory=350_000_000,
    nice=10,
    weight=20,
    state="spry-join",
)


def verified(service: Service, folder: Path) -> str:
    """Return what systemd complains of."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    file = folder / "spry-test.service"
    file.write_text(service.text())
    done = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, check=False, timeout=300, env={"LANG": "C"}
    )
    return "\n".join(line for line in done.stderr.splitlines() if file.name in line)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"user": None, "state": None},
        {"port": 443, "files": 65_536, "memory": None},
        {"state": None, "folder": Path(f"/srv/{ODD}"), "secrets": Path(f"/etc/{ODD}.env")},
    ],
    ids=["of the machine", "of a user", "on a low port", "in a folder with an odd name"],
)
def test_systemd_takes_it(changes, tmp_path):
    assert verified(dataclasses.replace(SERVICE, **changes), tmp_path) == ""


def test_systemd_finds_a_program_with_an_odd_path(tmp_path):
    program = tmp_path / "a 100% folder; with #, $HOME" / "python"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    service = dataclasses.replace(SERVICE, command=(str(program), "--data", ODD))
    assert verified(service, tmp_path) == ""
    program.unlink()
    assert "is not executable" in verified(service, tmp_path)


def test_words_and_values():
    assert quoted("--data") == "--data"
    assert quoted("/srv/two words") == '"/srv/two words"'
    assert quoted("") == '""'
    assert quoted("100%") == '"100%%"'
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
    assert plain("50% of\nit") == "50%% of it"
    assert variable("SPRY_TOKEN", 'a$b"c') == 'SPRY_TOKEN="a\\$b\\"c"\n'


def lines(service: Service) -> list[str]:
    return service.text().splitlines()


def test_limits_and_rights():
    found = lines(SERVICE)
    assert {"MemoryMax=350000000", "MemoryHigh=315000000", "Nice=10", "CPUWeight=20"} <= set(found)
    assert {"User=daemon", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=spry-join"} <= set(found)
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "WantedBy=multi-user.target"} <= set(found)
    assert "CapabilityBoundingSet=" in found
    assert not [line for line in found if line.startswith("ReadWritePaths")]


def test_a_folder_of_the_users_own():
    found = lines(dataclasses.replace(SERVICE, state=None, folder=Path("/srv/two words")))
    assert 'ReadWritePaths="/srv/two words"' in found
    assert "WorkingDirectory=/srv/two words" in found


def test_a_low_port_alone_gives_a_capability():
    low = lines(dataclasses.replace(SERVICE, port=443))
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in low
    high = "\n".join(lines(dataclasses.replace(SERVICE, port=8000)))
    assert "CAP_" not in high


def test_in_a_users_own_manager():
    """It cannot give up rights that it does not have, nor wait for the machine's network."""
    found = "\n".join(lines(dataclasses.replace(SERVICE, user=None)))
    assert not re.search("^(User|ProtectSystem|CapabilityBoundingSet|After)=", found, re.MULTILINE)
    assert "WantedBy=default.target" in found
