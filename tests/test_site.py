"""The site of docs/ is whole: built strictly, each page in its navigation, each link and anchor there.

A server shows it under a policy by which no script within a page runs.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from starlette.testclient import TestClient

from server.app import create_app
from server.settings import Settings
from server.web import guide
from tests.test_reference import Page

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "mkdocs.yml"
ELSEWHERE = re.compile(r"https?://(?:flower\.ai|nvflare\.readthedocs\.io|github\.com/leeoniya|pdoc\.dev)(?:/|$)")
"""Where readers may be sent, by links alone."""


class _Loader(yaml.SafeLoader):
    """Of mkdocs.yml, whose tags name Python's objects."""


def pages_of(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)]


def test_every_page_has_its_place_in_the_navigation():
    listed = pages_of(yaml.load(CONFIG.read_text(), _Loader)["nav"])
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    homeless = sorted(pages - set(listed))
    assert not homeless, f"give {', '.join(homeless)} a line in the nav of mkdocs.yml: tutorial, how-to, reference, …"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for needed in ("material", "pdoc"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site") / "guide"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}


def test_no_link_leads_nowhere(site, pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.netloc or parts.scheme:
                assert ELSEWHERE.match(link) or parts.scheme == "data", f"{path.relative_to(site)} links to {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 40
    assert not dead


def test_all_parts_are_there(site, pages):
    for part in ("index", "tutorials/researcher", "reference/http", "reference/python/edge_client", "project/android"):
        assert (site / f"{part}.html").resolve() in pages
    assert len((site / "search" / "search_index.json").read_text()) > 100_000


def test_nothing_is_asked_of_another_host_and_no_script_stands_in_a_page(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//", text), path
        assert not re.search(r"<link[^>]+href=\"(?:https?:)?//", text), path
        assert not re.search(r"<script(?![^>]*(?:src=|json))[^>]*>\s*\S", text), path
        assert not re.search(r"<[a-z]+[^>]*\son[a-z]+=\"", text), path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", path.read_text()), path


# --- a server that has it ---


@pytest.fixture
def http(site, tmp_path, monkeypatch):
    monkeypatch.setattr(guide, "FOLDER", site)
    with TestClient(create_app(Settings(data_dir=tmp_path, background=False))) as client:
        yield client


def test_a_server_shows_it_to_everybody(http):
    assert http.get("/guide", follow_redirects=False).headers["location"].endswith("/guide/")
    shown = http.get("/guide/")
    assert shown.status_code == 200
    assert "Start at nothing, end at a result" in shown.text
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; " in policy
    assert "http" not in policy
    assert http.get("/guide/assets/../troubleshooting.html").status_code == 200
    again = http.get("/guide/", headers={"If-None-Match": shown.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("path", ["no.html", "..%2fapp.py", "%2e%2e/app.py", "....//app.py", "%2fetc/passwd", "site"])
def test_a_server_shows_nothing_else(http, path):
    assert http.get(f"/guide/{path}").status_code == 404


def test_the_dashboard_links_into_it(http, pages, site):
    page = Page(http.get("/", headers={"Accept": "text/html"}).text)
    into = [urlsplit(link) for link in page.links if link.startswith("guide/")]
    assert len(into) > 2
    for link in into:
        assert http.get(f"/{link.path}").status_code == 200
        target = site / (link.path.removeprefix("guide/") or "index.html")
        assert not link.fragment or link.fragment in pages[target.resolve()].anchors


def test_a_server_without_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(guide, "FOLDER", tmp_path / "none")
    with TestClient(create_app(Settings(data_dir=tmp_path / "data", background=False))) as client:
        for path in ("/guide", "/guide/", "/guide/server.html"):
            missing = client.get(path)
            assert missing.status_code == 404
            assert "make docs" in missing.json()["detail"]
        assert "guide/" not in client.get("/", headers={"Accept": "text/html"}).text
