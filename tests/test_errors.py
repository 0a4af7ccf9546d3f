"""docs/troubleshooting.md has every message that may reach a user, and no other."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edge_client.errors import MACHINE_ERRORS
from tests.messages import PACKAGES, ROOT, TROUBLE, Module, messages, normal

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGE = re.compile(r"^- (`+)(.+?)\1$", re.MULTILINE | re.DOTALL)
"""A list's item that is one piece of code: a message as it is printed."""
JAVA = "## The Java core and the Android app"
"""The section of what no Python says."""
CODES = re.compile(r"^\| `([a-z-]+)` \| [0-9X, ]+ \|", re.MULTILINE)


def documented(page: str = PAGE.partition(JAVA)[0]) -> set[str]:
    return {normal(found[2]) for found in MESSAGE.finditer(page)}


@pytest.fixture(scope="module")
def of_java() -> dict[str, str]:
    """Every message of the Java core, and a file that has it."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: apt install openjdk-17-jdk-headless")
    command = ["java", ROOT / "tests/JavaMessages.java", ROOT / "android_demo/core/src/main/java"]
    found = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=300).stdout
    return dict(line.split("\t") for line in found.splitlines())


def test_every_message_is_explained():
    known = documented()
    missing = [f"{message.where}: - `{message.template}`" for message in messages() if message.template not in known]
    assert not missing, "add to docs/troubleshooting.md, with cause and remedy:\n" + "\n".join(missing)


def test_every_explained_message_exists():
    gone = documented() - {message.template for message in messages()}
    assert not gone, "no source has these any more, take them out of docs/troubleshooting.md:\n" + "\n".join(gone)


def test_every_message_of_the_java_core_is_explained_and_no_other(of_java):
    known = documented(PAGE)
    missing = [f"{where}: - `{message}`" for message, where in of_java.items() if message not in known]
    assert not missing, f"add to docs/troubleshooting.md under {JAVA!r}, with cause and remedy:\n" + "\n".join(missing)
    gone = documented(PAGE.partition(JAVA)[2]) - of_java.keys()
    assert not gone, "the Java core has these no more, take them out of docs/troubleshooting.md:\n" + "\n".join(gone)
    twice = documented(PAGE.partition(JAVA)[2]) & documented()
    assert not twice, "what Python says too stands above:\n" + "\n".join(twice)


def test_every_message_is_followed_by_an_explanation():
    """No list of messages ends where another heading or the page does."""
    blocks = [block for block in PAGE.split("\n\n") if block.strip()]
    for block, following in zip(blocks, [*blocks[1:], "#"], strict=True):
        if MESSAGE.match(block):
            assert not following.startswith(("#", "- ")), f"explain: {block}"


def test_the_codes_of_problem_documents_are_explained():
    source = "".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    sent = set(re.findall(r"(?:Refusal|problem)\(\s*[\w.]+,\s*\"([a-z-]+)\"", source))
    assert len(sent) > 10
    assert sent == set(CODES.findall(PAGE))


def test_conditions_of_the_machine_are_explained():
    table = PAGE.split("## Exporting")[0]
    assert not [os.strerror(number) for number in MACHINE_ERRORS if os.strerror(number) not in table]


def test_kinds_of_events_that_tell_of_trouble_are_explained():
    assert set(re.findall(r"^\| `([a-z]+)` \| [A-Za-z]", PAGE, re.MULTILINE)) >= TROUBLE


SAMPLE = """
_ADVICE = "do this"

class Wrong(SpryError):
    def __init__(self, what):
        super().__init__(f"{what} does not fit here")

def raised(path, found):
    what = "is not a file" if found else "does not exist"
    raise Wrong(f"{path} {what}: {_ADVICE}" + " at once, please")

def made(why):
    return Refusal(422, "invalid", f"the update is refused: {why}")

def used(tell):
    detail, code = f"{code} answers {1}", ""
    detail += "; check the address there"
    kind = Wrong if code else Wrong
    raise kind(detail)
    raise made(f"it lacks {1} of them")
    tell(Event("warning", "rows were left out", {}))
    tell(Event("progress", "no trouble at all", {}))
    log.error("job %s is lost after %d rounds", 1, 2)
    print("nobody's trouble")

def stops() -> str | None:
    return f"{3} rounds are done"

class Answers:
    def answer(self):
        reason = self._none()
        return CheckedIn(wait=1, reason=reason)

    def _none(self):
        return f"no slot is free in {1}"

class Settings:
    @field_validator("x")
    def check(cls, x):
        raise ValueError("must be longer than that")

def parsed():
    raise ValueError("not for users")
"""


def test_messages_are_found_wherever_they_are_written():
    module = Module(Path("sample.py"), {"_ADVICE": "do this"}, ast.parse(SAMPLE))
    told = {
        template
        for _, expression, function in module.told({"SpryError", "Wrong"})
        for template in module.templates(expression, function)
    }
    assert told == {
        "… does not fit here",
        "… is not a file: do this at once, please",
        "… does not exist: do this at once, please",
        "the update is refused: it lacks … of them",
        "… answers …",
        "… answers …; check the address there",
        "rows were left out",
        "job … is lost after … rounds",
        "… rounds are done",
        "no slot is free in …",
        "must be longer than that",
    }
