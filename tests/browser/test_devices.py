"""A device's own page, in a real browser."""

import time

import httpx
from playwright.sync_api import expect

from tests.browser.tabs import PHONE
from tests.test_journeys import fleet


def test_a_device_has_a_page_with_its_rounds(tab, site):
    site.job("history")
    site.reached("history", lambda job: job["done"] >= 2)
    one = tab()
    one.open("history")
    page = one.page
    page.locator("#devices").get_by_role("link", name="board-1").click()
    expect(page.get_by_role("heading", name="board-1", level=1)).to_be_visible()
    rows = page.locator("#device-parts tbody tr")
    expect(rows.first).to_contain_text("history")
    before = rows.first.inner_text()
    expect(rows.first).not_to_have_text(before)  # the page follows
    expect(page.locator("#device-tiles")).to_contain_text("MB")
    expect(page.locator("#device-refusals-text")).to_have_text("Nothing was refused or given back.")
    page.get_by_role("link", name="All devices").click()
    expect(page.locator("#found tbody tr")).to_have_count(2)
    site.stop("history")


def test_a_note_is_kept_and_a_device_revoked(tab, fresh):
    device = fresh.enrolled("pi 7")
    one = tab(PHONE, at=fresh)
    one.open()
    one.turn_to(f"device={device}")
    page = one.page
    expect(page.locator("#waits")).to_have_text("No job is running.")
    page.get_by_role("textbox", name="Note").fill("<b>cellar</b>")
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("#announcer")).to_have_text("The note is kept.")
    page.get_by_role("button", name="Revoke…").click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.locator("#device-state")).to_have_text("revoked")
    expect(page.get_by_role("button", name="Revoke…")).to_be_hidden()
    page.reload()
    expect(page.get_by_role("textbox", name="Note")).to_have_value("<b>cellar</b>")
    headers = {"Authorization": f"Bearer {fleet.TOKEN}"}
    known = httpx.get(f"{fresh.server.url}/v1/devices/{device}", headers=headers).json()
    assert (known["state"], known["note"]) == ("revoked", "<b>cellar</b>")

    watching = tab(at=fresh)
    watching.open(token=fresh.person("viewer"))
    watching.turn_to(f"device={device}")
    expect(watching.page.locator("#note-text")).to_have_text("<b>cellar</b>")
    expect(watching.page.get_by_role("textbox", name="Note")).to_be_hidden()


def test_many_devices_are_found_and_one_that_failed_says_why(tab, fresh):
    """Search, sort and unfold by keyboard; choose several, and write a note for them."""
    for number in range(1, 61):
        fresh.enrolled(f"board-{number}")
    with fresh.server.administrator() as admin:
        token = admin.post("/v1/tokens", {"label": "the cellar"})["token"]
    device = httpx.post(f"{fresh.server.url}/v1/devices", json={"token": token, "name": "pi"}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {device['device']}.{device['secret']}"}
    fresh.job("fails", per_round=1)
    says = {"runtimes": ["onnx"], "examples": 9}
    until = time.monotonic() + 300
    while not (task := httpx.post(f"{fresh.server.url}/v1/check-in", json=says, headers=headers).json()["task"]):
        assert time.monotonic() < until
        time.sleep(0.1)
    reason = {"reason": "<b>the battery</b> is low"}
    httpx.post(f"{fresh.server.url}/v1/tasks/{task['id']}/failure", json=reason, headers=headers).raise_for_status()

    one = tab(at=fresh)
    one.open()
    page = one.page
    page.get_by_role("link", name="All 61 devices").click()
    found, text = page.locator("#found tbody tr"), page.locator("#fleet-text")
    expect(text).to_have_text("1 to 50 of 61 devices")
    page.get_by_role("button", name="Those after").click()
    expect(found).to_have_count(11)
    page.get_by_role("searchbox", name="Search").fill("board-1")
    expect(text).to_have_text("1 to 11 of 11 devices")
    page.get_by_role("button", name="device", exact=True).press("Enter")
    expect(page.locator("#found th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    expect(found.nth(1)).to_contain_text("board-10")
    page.reload()  # the address says what is looked for
    expect(text).to_have_text("1 to 11 of 11 devices")
    page.get_by_label("Choose board-10", exact=True).check()
    page.get_by_label("Choose board-11", exact=True).check()
    page.get_by_label("Note for the chosen devices").fill("second shelf")
    page.get_by_role("button", name="Keep", exact=True).press("Enter")
    expect(page.locator("#announcer")).to_have_text("2 devices have the note.")
    expect(found.filter(has_text="second shelf")).to_have_count(2)
    page.get_by_role("searchbox", name="Search").fill("")
    page.get_by_label("Failed within a day").check()
    expect(text).to_have_text("1 to 1 of 1 device")
    expect(found).to_contain_text("the cellar")
    found.locator("summary").press("Enter")
    expect(found).to_contain_text("<b>the battery</b> is low")

    watching = tab(PHONE, at=fresh)
    watching.open(token=fresh.person("viewer"))
    watching.turn_to("devices")
    expect(watching.page.locator("#found tbody tr")).to_have_count(50)
    expect(watching.page.locator("#chosen-form")).to_be_hidden()
    assert watching.fits()


def test_names_of_jobs_stay_as_they_are_and_the_bar_is_one_line(tab, fresh):
    fresh.job("paused")
    headers = {"Authorization": f"Bearer {fleet.TOKEN}"}
    httpx.post(f"{fresh.server.url}/v1/jobs/paused/pause", headers=headers).raise_for_status()
    device = fresh.enrolled("board")
    one = tab(PHONE, at=fresh)
    one.open()
    one.turn_to(f"device={device}")
    expect(one.page.locator("#waits")).to_have_text("Job paused is paused.")
    assert one.page.locator(".bar").evaluate("bar => bar.clientHeight") < 64


def test_a_device_that_is_not_there_is_told(tab, fresh):
    one = tab(at=fresh)
    one.open()
    one.turn_to("device=d-nobody")
    expect(one.page.locator("#device-error")).to_contain_text("there is no device 'd-nobody'")
    one.wrong.clear()  # the browser's own line about the answer
