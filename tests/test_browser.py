"""The dashboard in Chromium: a real server, real clients, and what a person does with the page."""

import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.test_journeys import fleet, rows

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'spry[test]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium, or set CHROMIUM")

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-dev-shm-usage"]  # fmt: skip
DESKTOP, PHONE = (1280, 900), (375, 800)
expect = sync_api.expect
expect.set_options(timeout=20_000)


class Site:
    """A server with a bundle, and clients that take part."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder = folder
        self.server = fleet.Server(folder, retry_seconds=0.3, tick_seconds=0.05)
        self.clients: list = []
        with self.server.administrator() as admin:
            self.bundle = admin.upload_bundle(bundle, lambda *_: None)
            self.token = admin.post("/v1/tokens", {"uses": 10})["token"]

    def job(self, name: str, training: dict | None = None, **settings) -> None:
        values = {
            "training": {"batch": 2, "length": 8, "learning_rate": 0.1} | (training or {}),
            "per_round": 2, "over_selection": 1, "rounds": 1000, "device_evaluation": 1,
        } | settings  # fmt: skip
        with self.server.administrator() as admin:
            admin.post("/v1/jobs", {"name": name, "bundle": self.bundle, "settings": values})

    def state(self, name: str) -> dict:
        with self.server.administrator() as admin:
            return admin.get(f"/v1/jobs/{name}")

    def stop(self, name: str) -> None:
        with self.server.administrator() as admin:
            admin.post(f"/v1/jobs/{name}/stop")

    def start(self, count: int) -> None:
        """Clients that have enrolled when this returns: which test of a process is the first is chance."""
        for number in range(len(self.clients), len(self.clients) + count):
            data = fleet.write_rows(self.folder / f"client-{number}.jsonl", rows(20, number))
            where = self.folder / f"client-{number}"
            options = "--name", f"board-{number}", "--holdout", "0.3"
            self.clients.append(fleet.Client(self.server, where, data, self.token, *options))
        with self.server.administrator() as admin:
            until = time.monotonic() + 120
            while len(admin.get("/v1/devices")) < len(self.clients):
                assert time.monotonic() < until, "the clients have not enrolled"
                time.sleep(0.1)

    def stop_all(self) -> None:
        """What a failed test left running would keep the clients from the next one's job."""
        with self.server.administrator() as admin:
            for job in admin.get("/v1/jobs"):
                if job["state"] != "ended":
                    admin.post(f"/v1/jobs/{job['id']}/stop")

    def reached(self, name: str, condition, seconds: float = 60) -> dict:
        until = time.monotonic() + seconds
        while not condition(job := self.state(name)):
            assert time.monotonic() < until, job
            time.sleep(0.1)
        return job

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self.server.stop()


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


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield running
        running.close()


class Tab:
    """A page, and everything that went wrong on it."""

    def __init__(self, context, site: Site) -> None:
        self.site = site
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", lambda request: self.asked.append(request.url))
        context.add_init_script("""
            document.addEventListener("securitypolicyviolation",
                (event) => console.error("policy:", event.violatedDirective, event.blockedURI));
        """)

    def _console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _failed(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page itself leaves a stream
            self.wrong.append(f"failed: {request.url}: {request.failure}")

    def open(self, job: str = "", token: str = fleet.TOKEN) -> None:
        self.page.goto(f"{self.site.server.url}/#token={token}" + (f"&job={job}" if job else ""))
        expect(self.page.locator("#connection")).to_have_text("live")

    def rounds(self) -> int:
        return int(self.page.locator("#tiles div", has_text="Rounds").locator("span").inner_text().replace(",", ""))

    def waited_for_rounds(self, count: int) -> int:
        until = time.monotonic() + 30
        while (found := self.rounds()) < count:
            assert time.monotonic() < until, f"the page shows {found} rounds, not {count}"
            self.page.wait_for_timeout(100)
        return found

    def fits(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


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


# --- signing in ---


def test_a_wrong_token_is_told_and_the_right_one_shows_the_fleet(tab, site):
    one = tab()
    page = one.page
    page.goto(site.server.url)
    field = page.get_by_label("Administrator's token")
    expect(field).to_be_focused()
    field.fill("not-the-right-one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#sign-in-error")).to_contain_text("administrator's token")
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
    import httpx

    identity = next((client.folder / "home").rglob("identity.json")).read_text()
    device, secret = re.search(r'"device":"([^"]+)"', identity)[1], re.search(r'"secret":"([^"]+)"', identity)[1]
    headers = {"Authorization": f"Bearer {fleet.TOKEN}"}
    with httpx.stream("GET", f"{site.server.url}/v1/events", params={"job": job["id"]}, headers=headers) as events:
        for line in events.iter_lines():
            if found := re.search(r'"task":"(\w+)","device":"(?!' + device + r")", line):
                break
    answer = httpx.put(
        f"{site.server.url}/v1/tasks/{found[1]}/jvps/0",
        content=b"x",
        headers={"Authorization": f"Bearer {device}.{secret}"},
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


def test_the_form_waits_for_the_bundles_that_fill_it(tab, fresh):
    one, held = tab(at=fresh), []

    def hold(route):
        held.append(route)

    one.open()
    page = one.page
    page.route("**/v1/bundles", hold)
    press_on(page, "Start a job")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    expect(page.locator("#job-fields")).to_be_hidden()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    held.pop().continue_()
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()


def test_the_form_starts_from_what_fits_the_bundle(tab, fresh, paired):
    with fresh.server.administrator() as admin:
        pairs = admin.upload_bundle(paired, lambda *_: None)
    one = tab(at=fresh)
    one.open()
    page = one.page
    press_on(page, "Start a job")
    page.get_by_label("Name").fill("exact")
    page.get_by_label("Bundle").select_option(fresh.bundle)
    expect(page.get_by_label("Mode")).to_have_value("epoch")
    page.get_by_label("Bundle").select_option(pairs)
    expect(page.locator("#bundle-hint")).to_contain_text("Jobs on it start from the preset pairs")
    expect(page.get_by_label("Mode")).to_have_value("iteration")
    expect(page.get_by_label("Iterations in a round")).to_have_value("4")
    expect(page.get_by_label("Learning rate")).to_have_value("0.001")
    page.get_by_label("Learning rate").fill("0.002")
    press_on(page, "Start")
    expect(page.locator("#job-dialog")).to_be_hidden()
    made = fresh.state("exact")["settings"]
    assert (made["training"]["learning_rate"], made["training"]["directions"], made["average"]) == (0.002, 32, 0.95)


# --- what an administrator does ---


def test_a_job_is_started_paused_resumed_and_stopped_by_keyboard_alone(tab, site):
    one = tab()
    one.open()
    page = one.page
    press_on(page, "Start a job")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("typed")
    fill(page, "Rounds", "500")
    fill(page, "Clients in a round", "2")
    fill(page, "Learning rate", "0.1")
    fill(page, "Other settings", '{"training": {"batch": 3}}')
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#job-form-error")).to_contain_text("training.batch")  # as the server says it
    fill(page, "Other settings", '{"over_selection": 1')
    press_on(page, "Start")
    expect(page.locator("#job-form-error")).to_contain_text("JSON")
    fill(page, "Other settings", '{"over_selection": 1}')
    press_on(page, "Start")
    expect(page.locator("#job-dialog")).to_be_hidden()
    expect(page.get_by_role("heading", name="typed", level=1)).to_be_visible()
    made = site.state("typed")
    assert (made["settings"]["rounds"], made["settings"]["per_round"]) == (500, 2)
    assert made["settings"]["training"]["learning_rate"] == 0.1
    assert [wrong for wrong in one.wrong if "422" not in wrong] == []
    one.wrong.clear()

    press_on(page, "Pause")
    expect(page.locator("#job-state")).to_have_text("paused")
    assert site.state("typed")["state"] == "paused"
    press_on(page, "Resume")
    expect(page.locator("#job-state")).to_have_text("running")
    site.reached("typed", lambda job: job["done"] >= 1)
    press_on(page, "Stop…")
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#stop-dialog")).to_be_hidden()
    assert site.state("typed")["state"] == "running"
    press_on(page, "Stop…")
    press_on(page, "Stop it for good")
    expect(page.locator("#job-state")).to_have_text("ended")
    assert site.state("typed")["state"] == "ended"
    expect(page.get_by_role("button", name="Stop…")).to_be_hidden()


def press_on(page, name: str) -> None:
    """Tab until the button has the focus, which must be seen, and press it."""
    button = page.get_by_role("button", name=name, exact=True)
    for _ in range(80):
        if button.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(button).to_be_focused()
    assert button.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    page.keyboard.press("Enter")


def fill(page, label: str, value: str) -> None:
    field = page.locator("#job-dialog").get_by_label(label, exact=False).first
    for _ in range(40):
        if field.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(field).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type(value)


def test_a_job_of_mode_iteration_from_the_page(tab, site):
    one = tab(PHONE)
    one.open()
    page = one.page
    page.get_by_role("button", name="Start a job").click()
    page.get_by_label("Name").fill("by scalars")
    page.get_by_label("Mode").select_option("iteration")
    page.get_by_label("Iterations in a round").fill("3")
    page.get_by_label("Clients in a round").fill("1")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="by scalars", level=1)).to_be_visible()
    assert site.state("by scalars")["settings"]["training"]["iterations"] == 3
    site.stop("by scalars")


# --- for everybody ---


@pytest.mark.parametrize(  # colours do not depend on the width but for what a phone hides
    ("size", "scheme"),
    [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), ((360, 640), "dark")],
    ids=["desktop-light", "desktop-dark", "phone-light", "small phone-dark"],
)
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
    assert one.fits()
    accessible(page)
    site.stop(name)


def accessible(page) -> None:
    found = axe.Axe().run(page).response["violations"]
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


def test_names_from_devices_are_text(tab, site):
    """What a device says of itself is shown as it is, and does nothing."""
    import httpx

    name = "<img src=x onerror=alert(1)>"
    body = {"token": site.token, "name": name}
    assert httpx.post(f"{site.server.url}/v1/devices", json=body).status_code == 201
    one = tab()
    one.page.on("dialog", lambda dialog: one.wrong.append("a script ran"))
    one.open()
    expect(one.page.locator("#devices")).to_contain_text(name)


def test_a_fleet_of_hundreds_is_shown_in_parts(tab, fresh):
    import httpx

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
    expect(one.page.locator("#devices tbody tr")).to_have_count(50)
    one.page.get_by_role("button", name="Show all 130").click()
    expect(one.page.locator("#devices tbody tr")).to_have_count(130)
