"""docs/troubleshooting.md has every message that may reach a user, and no other."""

import re
from pathlib import Path

from edge_client.cli import MACHINE_ERRORS
from tests.messages import PACKAGES, ROOT, messages, normal

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGE = re.compile(r"^- (`+)(.+?)\1$", re.MULTILINE | re.DOTALL)
"""A list's item that is one piece of code: a message as it is printed."""
CODES = re.compile(r"^\| `([a-z-]+)` \| [0-9X, ]+ \|", re.MULTILINE)


def documented() -> set[str]:
    return {normal(found[2]) for found in MESSAGE.finditer(PAGE)}


def test_every_message_is_explained():
    known = documented()
    missing = [f"{message.where}: - `{message.template}`" for message in messages() if message.template not in known]
    assert not missing, "add to docs/troubleshooting.md, with cause and remedy:\n" + "\n".join(missing)


def test_every_explained_message_exists():
    gone = documented() - {message.template for message in messages()}
    assert not gone, "no source has these any more, take them out of docs/troubleshooting.md:\n" + "\n".join(gone)


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
    import os

    table = PAGE.split("## Exporting")[0]
    assert not [os.strerror(number) for number in MACHINE_ERRORS if os.strerror(number) not in table]


def test_links_lead_somewhere():
    for target, anchor in re.findall(r"\]\(([\w./-]*)#?([\w-]*)\)", PAGE):
        page = ROOT / "docs" / target if target else Path(ROOT / "docs" / "troubleshooting.md")
        assert page.is_file(), target
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, (target, anchor)
