"""The repository's pages: their links lead somewhere, and benchmarks/README.md names what there is."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.benchmarks import FOLDER

ROOT = FOLDER.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "tutorials", ROOT / "benchmarks", ROOT / "android_demo")
    for path in folder.glob("*.md")
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a browser of repositories makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    here = ROOT / page
    for target, anchor in LINK.findall(CODE.sub("", here.read_text())):
        there = (here.parent / target).resolve() if target else here
        assert there.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_each_row_of_a_table_is_one_line(page):
    lines = CODE.sub("code", (ROOT / page).read_text()).splitlines()
    assert not [line for line in lines if line.startswith("|") != line.rstrip().endswith("|")]


def test_the_page_of_benchmarks_names_all_of_them():
    linked = {target for target, _ in LINK.findall((FOLDER / "README.md").read_text())}
    scripts = {path.name for path in FOLDER.glob("*.py")}
    results = {f"results/{path.name}" for path in (FOLDER / "results").iterdir() if path.suffix in (".md", ".txt")}
    assert not (scripts | results) - linked
