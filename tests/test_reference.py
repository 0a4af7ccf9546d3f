"""The reference is written from what the sources say, whole and without dead links; /docs needs no other host."""

import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

import edge_client
from server.app import create_app
from server.settings import Settings

pytest.importorskip("pdoc", reason="the extra 'docs' is not installed")

SCRIPT = Path(__file__).parent.parent / "docs" / "reference.py"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def site(guide) -> Path:
    """Where `test_site.py` finds no dead links either."""
    return guide / "reference"


@pytest.fixture(scope="module")
def reference():
    return runpy.run_path(str(SCRIPT))


def test_the_sdk_begins_with_the_client_and_ends_with_errors(site):
    page = (site / "python" / "edge_client.html").read_text()
    places = [page.index(f'<section id="{name}">') for name in ("Client", "Stepper", "TextEncoder", "WrongResults")]
    assert places == sorted(places)
    assert "<td>Define the manifest of a bundle, <code>manifest.json</code>" in (site / "index.html").read_text()


def test_every_route_message_and_public_module_has_its_place(site, reference):
    page = Page((site / "http.html").read_text())
    document = create_app().openapi()
    assert len(document["paths"]) > 20
    assert {operation["id"] for operation in reference["operations"](document)} <= page.anchors
    assert set(document["components"]["schemas"]) <= page.anchors
    for name in reference["PUBLIC"]:
        assert (site / "python" / f"{name.replace('.', '/')}.html").is_file()


def test_the_public_surface_is_on_the_page_of_its_package(site):
    page = Page((site / "python" / "edge_client.html").read_text())
    assert set(edge_client.__all__) - {"__version__"} <= page.anchors


def test_the_http_page_tells_who_may_and_what_is_taken(site):
    page = (site / "http.html").read_text()
    enrol = page.split('<h3 id="enrol_', 1)[1].split("<h3", 1)[0]
    rounds = page.split('<h3 id="list_rounds_', 1)[1].split("<h3", 1)[0]
    assert "Who may: anybody" in enrol
    assert '<a href="#Enrolment">' in enrol
    assert "Who may: administrator" in rounds
    assert re.search(r"<code>limit</code></td><td>integer ≥ 1, ≤ 1000, else 100", rounds)
    assert "<code>too-large</code>" in page


def test_what_has_no_description_is_named(reference):
    module = type(sys)("silent", "A module.")
    exec("class Told:\n 'Told.'\n def method(self, a, b): pass\ndef silent(): pass\n", vars(module))
    vars(module)["Told"].__module__ = vars(module)["silent"].__module__ = "silent"
    assert list(reference["undescribed"]([module])) == ["silent.Told.method", "silent.silent"]
    document = create_app().openapi()
    assert list(reference["unnamed"](document)) == []
    document["paths"]["/healthz"]["get"]["description"] = ""
    del document["components"]["schemas"]["Task"]["description"]
    assert list(reference["unnamed"](document)) == ["GET /healthz", "the message Task"]


def test_the_interactive_page_needs_no_other_host(tmp_path):
    with TestClient(create_app(Settings(data_dir=tmp_path, background=False))) as http:
        shown = http.get("/docs")
        assert shown.status_code == 200
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        links = Page(shown.text).links
        assert len(links) == 3
        for link in [*links, re.search(r"url: '([^']+)'", shown.text)[1]]:
            assert not urlsplit(link).netloc
            assert http.get(f"/{link}").status_code == 200
        assert http.get("/redoc").status_code == 404
