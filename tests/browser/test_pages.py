"""Test what the dashboard shows, in a real browser."""

import re
import threading

import httpx
from playwright.sync_api import expect

from edge_client.keys import read_secret
from edge_client.wire.proofs import Signing
from tests.browser.tabs import Site
from tests.test_journeys import fleet

# --- signing in ---


def test_a_wrong_token_is_told_and_the_right_one_shows_the_fleet(tab, site):
    one = tab()
    page = one.page
    page.goto(site.server.url)
    field = page.get_by_label("Administrator's token")
    expect(field).to_be_focused()
    field.fill("not-the-right-one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#sign-in-error")).to_contain_text("The server does not know this token. Was it copied whole?")
    expect(page.locator("#fleet")).to_be_hidden()
    assert any("401" in wrong for wrong in one.wrong)  # the browser's own line about the answer
    one.wrong.clear()
    field.fill("tøken")
    field.press("Enter")
    expect(page.locator("#sign-in-error")).to_contain_text("characters")
    field.fill(fleet.TOKEN)
    field.press("Enter")
    expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("live")
    page.reload()
    expect(page.locator("#connection")).to_have_text("live")  # kept in the tab
    page.get_by_role("button", name="Sign out").click()
    expect(field).to_be_visible()
    page.reload()
    expect(field).to_be_visible()


def test_whose_token_is_revoked_is_told_so(tab, fresh):
    one = tab(at=fresh)
    one.open(token=fresh.person("operator"))
    with fresh.server.administrator() as admin:
        admin.delete("/v1/access/a-operator")
    one.page.reload()
    expect(one.page.locator("#sign-in-error")).to_contain_text("your own may have been revoked")
    one.wrong.clear()  # the browser's own line about the answer


def test_a_session_that_is_over_is_told(tab, fresh):
    one = tab(at=fresh)
    one.open(token=fresh.person("viewer"))
    with fresh.server.administrator() as admin:
        admin.delete("/v1/access/a-viewer")
    fresh.server.kill()  # the stream ends, and the page asks again
    fresh.server.start()
    expect(one.page.locator("#sign-in-error")).to_contain_text("You were signed out", timeout=40_000)
    expect(one.page.locator("#fleet")).to_be_hidden()
    one.wrong.clear()


def test_a_server_that_does_not_answer_is_waited_for(tab, fresh):
    one = tab(at=fresh)
    one.page.goto(fresh.server.url)
    fresh.server.kill()
    one.page.get_by_label("Administrator's token").fill(fleet.TOKEN)
    one.page.get_by_role("button", name="Sign in").click()
    expect(one.page.locator("#sign-in-error")).to_contain_text("The server does not answer.")
    fresh.server.start()
    expect(one.page.locator("#connection")).to_have_text("live")
    expect(one.page.locator("#sign-in")).to_be_hidden()
    one.wrong.clear()  # the browser tells of each attempt


def test_a_token_in_the_address_is_removed_and_never_sent(tab, site):
    one = tab()
    one.page.goto(site.server.url)
    one.page.goto(f"{site.server.url}/#token={fleet.TOKEN}&job=nothing")
    expect(one.page.locator("#connection")).to_have_text("live")
    assert fleet.TOKEN not in one.page.url
    assert fleet.TOKEN not in one.page.evaluate("JSON.stringify(performance.getEntriesByType('navigation'))")
    assert not [url for url in one.asked if fleet.TOKEN in url.partition("#")[0]]
    one.page.go_back()
    assert fleet.TOKEN not in one.page.url


def test_people_are_offered_what_they_may_do(tab, fresh):
    fresh.job("steered")
    offered = {
        "viewer": set(),
        "operator": {"Start a job", "Pause"},
        "administrator": {"Start a job", "Pause", "Stop…"},
    }
    for role, buttons in offered.items():
        one = tab(at=fresh)
        one.open("steered", fresh.person(role))
        page = one.page
        expect(page.get_by_role("heading", name="steered", level=1)).to_be_visible()
        for button in ("Start a job", "Pause", "Stop…"):
            shown = page.get_by_role("button", name=button, exact=True)
            expect(shown).to_be_visible() if button in buttons else expect(shown).to_be_hidden()
        if role != "administrator":
            expect(page.locator(".bar")).to_contain_text(f"a-{role}, {role}")
            expect(page.locator("#may")).to_contain_text("takes an administrator" if buttons else "takes an operator")


# --- what is shown ---


def test_an_empty_server_says_what_to_do_next(tab, fresh):
    one = tab(at=fresh)
    one.open()
    expect(one.page.locator("#no-job")).to_contain_text("spry job create")
    expect(one.page.locator("#no-device")).to_contain_text(f"spry join --server {fresh.server.url}")
    expect(one.page.locator("#job")).to_be_hidden()
    fresh.job("late")  # appears by itself
    expect(one.page.get_by_role("heading", name="late", level=1)).to_be_visible()
    expect(one.page.locator("#round-text")).to_contain_text("waits for devices")


def test_a_page_follows_a_job(tab, site):
    site.job("followed")
    one = tab()
    one.open("followed")
    page = one.page
    expect(page.get_by_role("heading", name="followed", level=1)).to_be_visible()
    site.reached("followed", lambda job: job["done"] >= 3)
    before = one.waited_for_rounds(3)
    site.reached("followed", lambda job: job["done"] >= before + 2)
    one.waited_for_rounds(before + 2)
    assert one.asked.count(f"{site.server.url}/") == 1  # without loading it again

    accuracy = page.locator("#chart-accuracy")
    expect(accuracy.locator("canvas")).to_be_visible()
    expect(accuracy.locator(".legend")).to_contain_text("personal")
    accuracy.get_by_text("As a table").click()
    expect(accuracy.locator("tbody tr").first).to_be_visible()
    expect(page.locator("#chart-bytes canvas")).to_be_visible()
    expect(page.locator("#chart-bytes")).to_contain_text("The bundle itself")
    expect(page.locator("#devices")).to_contain_text("board-1")
    expect(page.locator("#devices tbody tr").first).to_contain_text("MB")
    expect(page.locator("#assignment .done, #assignment .open").first).to_be_visible()
    page.get_by_text("Parts of this round as a table").click()
    expect(page.locator("#parts tbody tr").first).to_contain_text("board-")
    site.stop("followed")
    expect(page.locator("#job-state")).to_have_text("ended")
    expect(page.locator("#job-about")).to_contain_text("stopped by an administrator")
    expect(page.locator("#announcer")).to_contain_text("ended")


def test_iterations_and_refusals(tab, site):
    site.job("scalars", {"mode": "iteration", "iterations": 50}, device_evaluation=0)
    one = tab()
    one.open("scalars")
    expect(one.page.locator("#round-title")).to_contain_text("of 50")
    job = site.state("scalars")
    device = site.clients[0]
    refused(site, device, job)
    expect(one.page.locator("#refusals tbody")).to_contain_text("foreign")
    site.stop("scalars")


def refused(site: Site, client, job: dict) -> None:
    """One device reports for another's task."""
    identity = next((client.folder / "home").rglob("identity.json")).read_text()
    device = re.search(r'"device":"([^"]+)"', identity)[1]
    key = read_secret(next((client.folder / "home").rglob("device.key")))
    headers = {"Authorization": f"Bearer {fleet.TOKEN}"}
    with httpx.stream("GET", f"{site.server.url}/v1/events", params={"job": job["id"]}, headers=headers) as events:
        for line in events.iter_lines():
            if found := re.search(r'"task":"(\w+)","device":"(?!' + device + r")", line):
                break
    answer = httpx.put(
        f"{site.server.url}/v1/tasks/{found[1]}/jvps/0",
        content=b"x",
        auth=Signing(device, key, site.server.url),
    )
    assert answer.json()["code"] == "foreign"


def test_a_lost_connection_is_told_and_taken_up_again(tab, fresh):
    fresh.job("kept")
    one = tab(at=fresh)
    one.open()
    fresh.server.kill()
    expect(one.page.locator("#connection")).to_have_text("connection lost, trying again")
    expect(one.page.locator("#announcer")).to_have_text("Connection lost, trying again.")
    fresh.server.start()
    expect(one.page.locator("#connection")).to_have_text("live", timeout=40_000)
    fresh.stop("kept")
    expect(one.page.locator("#job-state")).to_have_text("ended")
    one.wrong.clear()  # the browser tells of each attempt


def test_names_from_devices_are_text(tab, site):
    """What a device says of itself is shown as it is, and does nothing."""
    name = "<img src=x onerror=alert(1)>"
    body = {"token": site.token, "name": name}
    assert httpx.post(f"{site.server.url}/v1/devices", json=body).status_code == 201
    one = tab()
    one.page.on("dialog", lambda dialog: one.wrong.append("a script ran"))
    one.open()
    expect(one.page.locator("#devices")).to_contain_text(name)


def test_a_fleet_of_hundreds_is_shown_in_parts(tab, fresh):
    with fresh.server.administrator() as admin:
        token = admin.post("/v1/tokens", {"uses": 200})["token"]

    def enrol(numbers):
        with httpx.Client(base_url=fresh.server.url) as http:
            for number in numbers:
                http.post("/v1/devices", json={"token": token, "name": f"board {number}"}).raise_for_status()

    threads = [threading.Thread(target=enrol, args=(range(start, 130, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = tab(at=fresh)
    one.open()
    expect(one.page.locator("#devices tbody tr")).to_have_count(20)
    one.page.get_by_role("link", name="All 130 devices").click()
    expect(one.page.locator("#found tbody tr")).to_have_count(50)
    expect(one.page.locator("#fleet-text")).to_have_text("1 to 50 of 130 devices")
