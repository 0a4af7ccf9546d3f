"""The page's files: all there, nothing from elsewhere, under a strict policy."""

import hashlib
import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from edge_client import __version__
from server.web.routes.dashboard import FOLDER

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = sorted(path for path in FOLDER.iterdir() if path.is_file())
SCRIPTS = [path for path in OWN if path.suffix == ".js"]


class Markup(HTMLParser):
    """The references and declarations of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def values(self, *names: str) -> list[str]:
        return [value for _, found in self.elements for name, value in found.items() if name in names and value]


@pytest.fixture
def page(server) -> str:
    return server.call("GET", "/", headers=BROWSER).text


def test_a_browser_gets_the_page_and_others_a_line(server, page):
    assert page.startswith("<!doctype html>")
    assert f'<span class="version">{__version__}</span>' in page
    text = server.call("GET", "/", headers={"Accept": "*/*"}).text
    assert text.startswith(f"spry {__version__}: ")
    assert text.count("\n") == 1


def test_every_asset_that_is_named_is_served(server, page):
    loaded = [found for tag, found in Markup(page).elements if tag != "a"]
    wanted = {urljoin("/", value) for found in loaded for name, value in found.items() if name in ("src", "href")}
    pending = list(wanted)
    while pending:
        address = pending.pop()
        response = server.call("GET", address, headers={})
        kind = response.headers["Content-Type"].partition(";")[0]
        expected = {"js": {"text/javascript", "application/javascript"}, "css": {"text/css"}, "svg": {"image/svg+xml"}}
        assert kind in expected[address.rpartition(".")[2]], address
        named = re.findall(r'(?:from|import\()\s*"(\.[^"]+)"|url\("?([^")]+)', response.text)
        found = {urljoin(address, name) for pair in named for name in pair if name and "vendor" not in address}
        pending += found - wanted
        wanted |= found
    assert {address.rpartition("/")[2] for address in wanted} >= {path.name for path in SCRIPTS}
    assert "/dashboard/vendor/uPlot.iife.min.js" in wanted


def test_links_lead_to_the_server_itself(server, page):
    for tag, found in Markup(page).elements:
        if tag == "a" and not found["href"].startswith("#"):
            server.call("GET", urljoin("/", found["href"]), headers=BROWSER)


def test_nothing_refers_to_another_host():
    for path in OWN:
        named = set(re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"']*", path.read_text()))
        assert named <= {"http://www.w3.org/2000/svg"}, path


def test_nothing_is_inline(page):
    markup = Markup(page)
    assert not markup.values("style")
    for tag, attributes in markup.elements:
        assert tag != "style"
        assert tag != "script" or "src" in attributes
        assert not [name for name in attributes if name.startswith("on")]
    for path in SCRIPTS:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", path.read_text()), path


@pytest.mark.parametrize("path", ["/", "/dashboard/app.js", "/dashboard/vendor/uPlot.min.css"])
def test_the_policy_is_strict(server, path):
    headers = server.call("GET", path, headers=BROWSER).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' data:",
        "connect-src": "'self'", "font-src": "'none'", "base-uri": "'none'", "form-action": "'none'",
        "frame-ancestors": "'none'",
    }  # fmt: skip
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_an_asset_that_a_browser_has_is_not_sent_again(server):
    first = server.call("GET", "/dashboard/style.css", headers={})
    again = server.call("GET", "/dashboard/style.css", 304, headers={"If-None-Match": first.headers["ETag"]})
    assert again.content == b""
    assert again.headers["Cache-Control"] == first.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/dashboard/", "/dashboard/nothing.js", "/dashboard/..%2fapp.py", "/dashboard/vendor"]
)
def test_nothing_else_is_served(server, path):
    assert server.call("GET", path, 404, headers={}).headers["Content-Type"].startswith("application/problem+json")


def test_the_scripts_name_elements_that_the_page_has(page):
    ids = Markup(page).values("id")
    assert len(ids) == len(set(ids))
    used = {name for path in SCRIPTS for name in re.findall(r'\$\("([\w-]+)"\)', path.read_text())}
    assert used <= set(ids)
    for reference in Markup(page).values("for", "aria-labelledby", "aria-describedby"):
        assert set(reference.split()) <= set(ids)


def test_what_is_vendored_is_what_was_published():
    sums = dict(re.findall(r"\| `([\w.]+)` \| `([0-9a-f]{64})` \|", (FOLDER / "vendor" / "README.md").read_text()))
    assert len(sums) == 2
    for name, expected in sums.items():
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == expected
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text()
