"""Chromium, a server that clients work for, and pages that must not complain."""

import os
import re
import shutil

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.tabs import DESKTOP, ELSEWHERE, Site, Tab

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-dev-shm-usage", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """One for a file: while it runs, nothing else in the process can start another, nor an event loop."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium, or set CHROMIUM")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def site(tiny, tmp_path_factory):
    """With two clients, which are busy whenever there is a job."""
    found = Site(tmp_path_factory.mktemp("site"), tiny)
    found.start(2)
    yield found
    found.close()


@pytest.fixture
def fresh(tiny, tmp_path):
    """A server of its own, without clients."""
    found = Site(tmp_path, tiny)
    yield found
    found.close()


@pytest.fixture
def tab(browser, site):
    """Opens pages; whatever they complain of fails the test."""
    tabs: list[Tab] = []
    contexts = []

    def make(size=DESKTOP, scheme="light", at: Site = site) -> Tab:
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        tabs.append(Tab(context, at))
        return tabs[-1]

    yield make
    site.stop_all()
    found = [wrong for one in tabs for wrong in one.wrong]
    hosts = {re.sub(r"^(\w+://[^/]+).*", r"\1", url) for one in tabs for url in one.asked}
    for context in contexts:
        context.close()
    assert not found
    assert hosts <= {one.site.server.url for one in tabs}
