"""The site of docs/ is whole: built strictly, each page in its navigation, each link and anchor there.

A server shows it under a policy by which no script within a page runs.
"""

import re
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from playwright.sync_api import sync_playwright
from starlette.testclient import TestClient

from server.app import create_app
from server.settings import Settings
from server.web import guide
from tests.browser.conftest import CHROMIUM
from tests.test_reference import Page

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "mkdocs.yml"
ELSEWHERE = re.compile(
    r"https?://(?:flower\.ai|nvflare\.readthedocs\.io|arxiv\.org|github\.com/(?:apple|leeoniya|google)|pdoc\.dev)(?:/|$)"
)
"""Where readers may be sent, by links alone."""


class _Loader(yaml.SafeLoader):
    """A loader of mkdocs.yml, whose tags name Python's objects."""


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
def site(guide) -> Path:
    return guide


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


# --- in a browser ---


@pytest.fixture(scope="module")
def address(site, tmp_path_factory):
    import uvicorn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guide, "FOLDER", site)
        app = create_app(Settings(data_dir=tmp_path_factory.mktemp("data"), background=False))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium, or set CHROMIUM")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture
def page(browser, address):
    """One that asks this server alone, and complains of nothing."""
    shown = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    wrong: list[str] = []
    shown.on("console", lambda told: wrong.append(told.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("request", lambda asked: asked.url.startswith((address, "data:")) or wrong.append(asked.url))
    yield shown
    shown.close()
    assert not wrong


@pytest.mark.parametrize("name", ["", "server.html", "troubleshooting.html", "demo.html", "reference/http.html"])
def test_a_page_fits_a_phone_and_is_dark_where_asked_for(page, address, name):
    page.goto(f"{address}/guide/{name}")
    page.wait_for_selector("[data-md-color-scheme=slate]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("error: no runtime is installed", "troubleshooting.html#something-is-not-installed"),
        ("a certificate that this device does not trust", "troubleshooting.html#network-and-certificates"),
        ("bundle/ exists; choose another --out or pass --overwrite", "troubleshooting.html#options-of-an-export"),
        ("raspberry pi", "raspberry-pi.html"),
    ],
)
def test_the_search_finds_what_a_message_is_about(page, address, asked, found):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/guide/")
    page.locator("input.md-search__input").click()
    page.keyboard.type(asked)
    result = page.locator(".md-search-result__item").first.locator("a")
    result.filter(visible=True).first.wait_for()
    page.wait_for_timeout(500)  # the results of fewer letters come first
    links = [urlsplit(link.get_attribute("href")) for link in result.all()]
    assert found in {f"{link.path.rpartition('/')[2]}{'#' if link.fragment else ''}{link.fragment}" for link in links}
