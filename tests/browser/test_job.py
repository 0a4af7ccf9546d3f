"""A job's settings, its log, what holds it up, and its adapter, in a real browser."""

import re
import zipfile

from playwright.sync_api import expect

from tests.browser.tabs import DESKTOP, PHONE
from tests.test_journeys import fleet, rows


def test_settings_log_and_the_adapter_of_a_job(tab, site, tmp_path):
    held_out = fleet.write_rows(tmp_path / "test.jsonl", rows(20, 7))
    with site.server.administrator() as admin:
        sha256 = admin.upload_held_out(held_out)
    site.job("told", rounds=300, held_out=sha256)
    site.reached("told", lambda job: job["done"] >= 3)
    one = tab()
    one.open("told")
    page = one.page
    legend = page.locator("#chart-accuracy .legend")
    expect(legend).to_contain_text("always the most frequent class")
    expect(legend).to_contain_text(re.compile(r"the task layer without the units \d+\.\d %"))
    expect(page.locator("#chart-accuracy")).to_contain_text("on the model as it was before the units learned")
    expect(page.locator("#tiles [data-key='Time left']")).to_contain_text("if rounds go on as the last ones did")
    expect(page.locator("#tiles [data-key=Devices]")).to_contain_text(re.compile(r"Devices\s*2\s*took part"))
    page.get_by_text("Settings", exact=True).click()
    row = page.locator("#settings tr", has_text="training.learning_rate").first
    expect(row).to_contain_text("0.01")
    page.get_by_text("Log", exact=True).click()
    expect(page.locator("#log")).to_contain_text("made the job")
    expect(page.locator("#log")).to_contain_text("is done: 2 reports, loss")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download adapter").click()
    assert waiting.value.suggested_filename.startswith("told-")
    with zipfile.ZipFile(waiting.value.path()) as archive:
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.namelist())
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download for PEFT").click()
    assert re.fullmatch(r"told-\d+\.zip", waiting.value.suggested_filename)
    expect(page.locator("#download-gguf")).to_be_hidden()  # a GGUF adapter has no place for a task layer
    page.get_by_text("The whole model, merged").click()
    expect(page.locator("#merge-command")).to_have_text(
        "spry adapter download told --format merged --model tiny-bert --out merged/"
    )
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#advice")).to_contain_text(
        "It is paused: no device is given a part until somebody resumes it."
    )
    expect(page.locator("#log")).to_contain_text("paused it")
    expect(page.locator("#tiles [data-key='Time left']")).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#advice-card")).to_be_hidden()
    site.stop("told")


def test_a_job_that_waits_says_what_to_do(tab, fresh):
    fresh.job("waits")
    one = tab(at=fresh)
    one.open()
    page = one.page
    expect(page.locator("#advice")).to_contain_text("no enrolled device is suitable and here: enrol one")
    expect(page.locator("#advice code")).to_have_text("spry devices list")
    expect(page.locator("#learned-text")).to_have_text("Nothing yet: the first round is not done.")
    expect(page.get_by_role("button", name="Download adapter")).to_be_disabled()
    page.locator("#advice-card").get_by_role("link", name="Enrol devices").click()
    expect(page.get_by_role("heading", name="Make a token")).to_be_visible()


def test_a_link_to_a_job_that_is_gone_says_so(tab, fresh):
    fresh.job("there")
    one = tab(at=fresh)
    one.open("gone")
    page = one.page
    expect(page.locator("#lost-link")).to_have_text(
        "The server has no job gone: it was deleted, or the link is another server's."
    )
    page.get_by_role("link", name="there").first.click()
    expect(page.locator("#lost-link")).to_be_hidden()
    expect(page.locator("#job-name")).to_have_text("there")


def test_devices_come_before_the_history_on_a_phone(tab, fresh):
    fresh.job("ordered")
    fresh.enrolled("pi 3")
    one = tab(PHONE, at=fresh)
    one.open()
    page = one.page
    devices, history = page.locator("#devices"), page.locator("#charts")
    expect(devices).to_be_visible()

    def come_first() -> bool:
        return devices.bounding_box()["y"] < history.bounding_box()["y"]

    assert come_first()
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    page.wait_for_timeout(300)
    assert not come_first()


def test_what_a_private_job_has_spent(tab, site):
    """Epsilon as a number and as a curve, and in place of a loss why there is none."""
    site.job("private", rounds=300, device_evaluation=0, privacy_noise=20.0, privacy_times=40)
    site.reached("private", lambda job: job["done"] >= 2)
    one = tab()
    one.open("private")
    page = one.page
    expect(page.locator("#tiles [data-key=Epsilon]")).to_contain_text("after 40 rounds; delta 0.00001")
    expect(page.locator("#chart-epsilon .legend")).to_contain_text("device that took part most often")
    expect(page.locator("#chart-epsilon canvas")).to_be_visible()
    expect(page.locator("#chart-loss")).to_contain_text("Not told: the job keeps a privacy budget")
    site.stop("private")
    site.job("open", rounds=300)
    one.open("open")
    expect(page.locator("#chart-loss canvas")).to_be_visible(timeout=60_000)
    expect(page.locator("#chart-epsilon")).to_be_hidden()
