"""Whether everybody can see and use the dashboard, in a real browser."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.tabs import DESKTOP

everywhere = pytest.mark.parametrize(  # colours do not depend on the width, and a phone only hides
    ("size", "scheme"),
    [(DESKTOP, "light"), (DESKTOP, "dark"), ((360, 640), "light")],
    ids=["desktop-light", "desktop-dark", "small phone-light"],
)


@everywhere
def test_it_fits_and_everybody_can_use_it(tab, site, size, scheme):
    name = f"seen-{size[0]}-{scheme}"
    site.job(name)
    one = tab(size, scheme)
    page = one.page
    page.goto(site.server.url)
    expect(page.get_by_label("Administrator's token")).to_be_visible()
    assert one.fits()
    accessible(page)
    one.open(name)
    site.reached(name, lambda job: job["done"] >= 2)
    expect(page.locator("#chart-loss canvas")).to_be_visible()
    expect(page.locator("#devices tbody tr")).to_have_count(2)
    for summary in page.locator("summary:visible").all():
        summary.click()
    assert one.fits()
    accessible(page)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in re.findall(r"\d+", background)[:3])
    assert (lightness > 600) == (scheme == "light")
    page.get_by_role("button", name="Start a job").click()
    expect(page.get_by_label("Name")).to_be_focused()
    for summary in page.locator("#job-dialog summary:visible").all():
        summary.click()
    assert one.fits()
    accessible(page)
    site.stop(name)


@everywhere
def test_the_other_pages_too(tab, fresh, size, scheme):
    device = fresh.enrolled("a board with a name that is as long as names of boards may be, or nearly so")
    one = tab(size, scheme, fresh)
    one.open()
    page = one.page
    one.turn_to(f"device={device}")
    expect(page.get_by_role("heading", name="a board with a name")).to_be_visible()
    expect(page.get_by_role("heading", name="Its rounds")).to_be_visible()
    assert one.fits()
    accessible(page)
    page.get_by_role("button", name="Revoke…").click()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    assert one.fits()
    accessible(page)
    page.keyboard.press("Escape")
    fresh.job("first")
    fresh.job("second", {"learning_rate": 0.5})
    one.turn_to("compare=first&compare=second")
    expect(page.locator("#compare-settings tbody tr")).to_have_count(1)
    assert one.fits()
    accessible(page)
    one.turn_to("devices&search=board")
    expect(page.locator("#found tbody tr")).to_have_count(1)
    assert one.fits()
    accessible(page)
    one.turn_to("tokens")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#made-qr")).to_be_visible()
    expect(page.locator("#tokens tbody tr")).to_have_count(2)
    assert one.fits()
    accessible(page)


def accessible(page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    told = [(violation["id"], [node["html"][:200] for node in violation["nodes"]][:3]) for violation in serious]
    assert not told


def test_curves_follow_the_window_and_the_colour_scheme(tab, site):
    site.job("resized")
    one = tab()
    one.open("resized")
    page = one.page
    site.reached("resized", lambda job: job["done"] >= 2)
    canvas = page.locator("#chart-loss canvas")
    expect(canvas).to_be_visible()
    site.stop("resized")
    expect(page.locator("#job-state")).to_have_text("ended")
    ink = "canvas => canvas.toDataURL()"
    wide, light = canvas.bounding_box()["width"], canvas.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert canvas.evaluate(ink) != light
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_timeout(300)
    narrow = canvas.bounding_box()["width"]
    assert narrow < min(wide, 375)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_timeout(300)
    assert canvas.bounding_box()["width"] == wide
