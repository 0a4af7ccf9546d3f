"""A report in Chromium: at a desk and on a phone, in light and in dark."""

import os
import shutil

import pytest

from edge_client.commands.cli import run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium, or set CHROMIUM")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-dev-shm-usage"]  # fmt: skip
INK = {"light": "rgb(85, 97, 122)", "dark": "rgb(162, 174, 192)"}


@pytest.fixture
def browser():
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()


def test_everybody_can_read_a_report(browser, sweep, tmp_path):
    out = tmp_path / "report.html"
    assert run(["report", str(sweep), "--out", str(out)]) == 0
    for scheme in ("light", "dark"):
        for width in (1280, 375):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(out.as_uri())
            assert asked == [out.as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth") == width
            colour = "getComputedStyle(document.querySelector('figure svg text')).fill"
            assert page.evaluate(colour) == INK[scheme]
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            found = axe.Axe().run(page).response["violations"]
            assert not [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
            page.close()
