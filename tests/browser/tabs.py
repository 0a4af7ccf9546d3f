"""A real server with real clients, and pages of it in Chromium."""

import time
from pathlib import Path

import httpx
from playwright.sync_api import expect

from tests.test_journeys import fleet, rows

DESKTOP, PHONE = (1280, 900), (375, 800)
ELSEWHERE = "board.test"
"""A name by which the browser takes this machine for another one."""
expect.set_options(timeout=60_000)


class Site:
    """A server with a bundle, and clients that take part."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder = folder
        self.server = fleet.Server(folder, retry_seconds=0.3, tick_seconds=0.05)
        self.clients: list = []
        with self.server.administrator() as admin:
            self.bundle = admin.upload_bundle(bundle)
            self.token = admin.post("/v1/tokens", {"uses": 100})["token"]

    def job(self, name: str, training: dict | None = None, **settings) -> None:
        values = {
            "training": {"batch": 2, "length": 8, "learning_rate": 0.01} | (training or {}),
            "per_round": 2, "over_selection": 1, "rounds": 1000, "device_evaluation": 1,
        } | settings  # fmt: skip
        with self.server.administrator() as admin:
            admin.post("/v1/jobs", {"name": name, "bundle": self.bundle, "settings": values})

    def person(self, role: str) -> str:
        """The token of a new one."""
        with self.server.administrator() as admin:
            return admin.post("/v1/access", {"name": f"a-{role}", "role": role})["token"]

    def enrolled(self, name: str) -> str:
        """The id of a device that never trains."""
        body = {"token": self.token, "name": name}
        answer = httpx.post(f"{self.server.url}/v1/devices", json=body)
        return answer.raise_for_status().json()["device"]

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
            until = time.monotonic() + 300
            while len(admin.get("/v1/devices")) < len(self.clients):
                assert time.monotonic() < until, "the clients have not enrolled"
                time.sleep(0.1)

    def stop_all(self) -> None:
        """Stop what a failed test left running: it would keep the clients from the next one's job."""
        with self.server.administrator() as admin:
            for job in admin.get("/v1/jobs"):
                if job["state"] != "ended":
                    admin.post(f"/v1/jobs/{job['id']}/stop")

    def reached(self, name: str, condition, seconds: float = 300) -> dict:
        until = time.monotonic() + seconds
        while not condition(job := self.state(name)):
            assert time.monotonic() < until, job
            time.sleep(0.1)
        return job

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self.server.stop()


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
        if self._network_changed():
            self.page.reload()
        expect(self.page.locator("#connection")).to_have_text("live")

    def _network_changed(self) -> bool:
        """The machine's: Chromium then ends all connections, those to the machine itself among them."""
        before = len(self.wrong)
        self.wrong[:] = [wrong for wrong in self.wrong if "ERR_NETWORK_CHANGED" not in wrong]
        return len(self.wrong) < before

    def turn_to(self, place: str) -> None:
        """Another page, as a link would."""
        self.page.evaluate("place => { location.hash = place }", place)

    def rounds(self) -> int:
        return int(self.page.locator("#tiles [data-key=Rounds] span").inner_text().replace(",", ""))

    def waited_for_rounds(self, count: int) -> int:
        until = time.monotonic() + 300
        while (found := self.rounds()) < count:
            assert time.monotonic() < until, f"the page shows {found} rounds, not {count}"
            self.page.wait_for_timeout(100)
        return found

    def fits(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


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
    field = page.locator("#job-dialog").get_by_label(label, exact=True).first
    for _ in range(40):
        if field.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(field).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type(value)


def unfold(page, title: str) -> None:
    """Tab until what folds a part of the form has the focus, and open it."""
    summary = page.locator("#job-dialog summary").filter(has_text=title)
    for _ in range(40):
        if summary.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(summary).to_be_focused()
    page.keyboard.press("Enter")
