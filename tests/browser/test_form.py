"""The dashboard's form for a job, and what an administrator does to a job, in a real browser."""

import hashlib

from playwright.sync_api import expect

from tests.browser.tabs import ELSEWHERE, PHONE, fill, press_on, unfold
from tests.test_journeys import fleet, rows


def test_the_form_waits_for_the_bundles_that_fill_it(tab, fresh):
    one, held = tab(at=fresh), []

    def hold(route):
        held.append(route)

    one.open()
    page = one.page
    page.route("**/v1/bundles", hold)
    with page.expect_request("**/v1/bundles"):
        press_on(page, "Start a job")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    expect(page.locator("#job-fields")).to_be_hidden()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    for _ in range(400):  # the browser tells of a request before it is held
        if held:
            break
        page.wait_for_timeout(50)
    held.pop().continue_()
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()


def test_a_cancelled_form_keeps_what_was_typed(tab, fresh, narrow):
    one = tab(at=fresh)
    one.open()
    page = one.page
    press_on(page, "Start a job")
    page.get_by_label("Name").fill("again")
    page.get_by_label("default").check()
    page.get_by_text("Training on devices").click()
    page.get_by_label("Learning rate", exact=True).fill("0.5")
    press_on(page, "Cancel")
    page.get_by_role("button", name="Start a job").click()
    expect(page.get_by_label("Name")).to_have_value("again")
    expect(page.get_by_label("default")).to_be_checked()
    expect(page.get_by_label("Learning rate", exact=True)).to_have_value("0.5")
    page.keyboard.press("Escape")
    with fresh.server.administrator() as admin:
        admin.upload_bundle(narrow)
    page.get_by_role("button", name="Start a job").click()
    expect(page.get_by_label("Bundle").locator("option")).to_have_count(2)


def test_as_many_devices_are_proposed_as_are_here(tab, fresh):
    one = tab(at=fresh)
    one.open()
    page = one.page
    press_on(page, "Start a job")
    expect(page.locator("#clients-hint")).to_have_text("No device is here yet.")
    expect(page.get_by_label("Devices in a round")).to_have_value("10")
    press_on(page, "Cancel")
    for number in range(3):
        fresh.enrolled(f"pi {number}")
    expect(page.locator("#devices tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Start a job").click()
    expect(page.locator("#clients-hint")).to_have_text("3 devices are here.")
    expect(page.get_by_label("Devices in a round")).to_have_value("3")
    page.get_by_label("Devices in a round").fill("2")
    press_on(page, "Cancel")
    page.get_by_role("button", name="Start a job").click()
    expect(page.get_by_label("Devices in a round")).to_have_value("2")


def test_a_bundle_is_named_by_people(tab, fresh):
    one = tab(PHONE, at=fresh)
    one.open()
    page = one.page
    page.get_by_role("button", name="Start a job").click()
    page.get_by_text("Give it a name").click()
    page.get_by_label("What to call it").fill("tickets, spring")
    page.get_by_label("What to call it").press("Enter")
    expect(page.get_by_label("Bundle").locator("option")).to_have_text(f"tickets, spring ({fresh.bundle[:8]})")
    expect(page.locator("#job-dialog")).to_be_visible()
    with fresh.server.administrator() as admin:
        assert [bundle["name"] for bundle in admin.get("/v1/bundles")] == ["tickets, spring"]


def test_the_form_starts_from_what_fits_the_bundle(tab, fresh, narrow):
    with fresh.server.administrator() as admin:
        other = admin.upload_bundle(narrow)
    one = tab(at=fresh)
    one.open()
    page = one.page
    press_on(page, "Start a job")
    page.get_by_label("Name").fill("exact")
    page.get_by_label("Bundle").select_option(fresh.bundle)
    expect(page.get_by_role("radio", name="auto")).to_be_checked()
    expect(page.locator("#presets")).to_contain_text("forward passes a step")
    page.get_by_label("Bundle").select_option(other)
    expect(page.get_by_role("radio", name="bottleneck")).to_be_checked()
    expect(page.locator("#presets label").first).to_contain_text("fits this bundle")
    page.get_by_text("Training on devices").click()
    rate = page.get_by_label("Learning rate", exact=True)
    expect(rate).to_have_value("")  # nobody sets one
    expect(rate).to_have_attribute("placeholder", "0.001")
    rate.fill("0.002")
    expect(page.locator("summary").filter(has_text="Training on devices")).to_have_text("Training on devices · 1 set")
    press_on(page, "Start")
    expect(page.locator("#job-dialog")).to_be_hidden()
    made = fresh.state("exact")["settings"]
    assert (made["training"]["learning_rate"], made["training"]["exact_blocks"], made["average"]) == (0.002, 2, 0.9)


def test_the_forms_buttons_are_seen_and_fields_that_do_not_fit_too(tab, fresh):
    one = tab((1440, 900), at=fresh)
    one.open()
    page = one.page
    page.get_by_role("button", name="Start a job").click()
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_enabled()
    for summary in page.locator("#setting-groups summary").all():
        summary.click()
    expect(start).to_be_in_viewport(ratio=1)
    page.get_by_label("Name").fill("private")
    page.get_by_label("Min holders").fill("1")
    page.locator("summary").filter(has_text="Secure aggregation").click()
    start.click()
    expect(page.get_by_label("Min holders")).to_be_focused()  # unfolded, with what the browser says of it
    page.get_by_label("Min holders").fill("")
    page.get_by_label("Privacy epsilon").fill("8")
    expect(page.get_by_label("Devices measure it every so many rounds")).to_be_disabled()
    page.get_by_label("Aggregation", exact=True).select_option("agreeing")
    start.click()
    expect(page.locator("#job-form-error")).to_contain_text("it needs aggregation mean, got agreeing")
    one.wrong.clear()  # the browser tells of the refusal
    page.get_by_label("Aggregation", exact=True).select_option("")
    start.click()
    expect(page.locator("#job-dialog")).to_be_hidden()
    made = fresh.state("private")["settings"]
    assert (made["privacy_epsilon"], made["device_evaluation"]) == (8.0, 0)
    assert made["average"] == 0.8, "as spry job create starts a private job"


def test_a_job_is_started_paused_resumed_and_stopped_by_keyboard_alone(tab, site):
    one = tab()
    one.open()
    page = one.page
    press_on(page, "Start a job")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("typed")
    fill(page, "Rounds", "500")
    fill(page, "Devices in a round", "2")
    unfold(page, "Training on devices")
    fill(page, "Learning rate", "0.1")
    unfold(page, "Advanced: JSON")
    fill(page, "Other settings (JSON)", '{"training": {"batch": 3}}')
    press_on(page, "Start")
    expect(page.locator("#job-form-error")).to_contain_text("training.batch")  # as the server says it
    fill(page, "Other settings (JSON)", '{"over_selection": 1')
    press_on(page, "Start")
    expect(page.locator("#job-form-error")).to_contain_text("JSON")
    fill(page, "Other settings (JSON)", '{"over_selection": 1}')
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
    expect(page.locator("#ask-dialog")).to_be_hidden()
    assert site.state("typed")["state"] == "running"
    press_on(page, "Stop…")
    press_on(page, "Stop it for good")
    expect(page.locator("#job-state")).to_have_text("ended")
    assert site.state("typed")["state"] == "ended"
    expect(page.get_by_role("button", name="Stop…")).to_be_hidden()


def test_a_job_of_mode_iteration_from_the_page(tab, site):
    one = tab(PHONE)
    one.open()
    page = one.page
    page.get_by_role("button", name="Start a job").click()
    page.get_by_label("Name").fill("by scalars")
    page.get_by_text("Training on devices").click()
    page.get_by_label("Mode", exact=True).select_option("iteration")
    page.get_by_label("Iterations", exact=True).fill("3")
    page.get_by_label("Devices in a round").fill("1")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="by scalars", level=1)).to_be_visible()
    training = site.state("by scalars")["settings"]["training"]
    assert (training["iterations"], training["estimator"]) == (3, "forward"), "auto is for mode epoch"
    site.stop("by scalars")


def test_a_job_is_measured_on_examples_from_the_page(tab, site, tmp_path):
    examples = fleet.write_rows(tmp_path / "test.jsonl", rows(20, 7))
    foreign = fleet.write_rows(tmp_path / "foreign.jsonl", [{"text": "the ice", "label": "cold"}])
    one = tab()
    one.open()
    page = one.page
    page.get_by_role("button", name="Start a job").click()
    page.get_by_label("Name").fill("measured")
    page.get_by_label("Devices in a round").fill("2")
    page.get_by_text("Advanced: JSON").click()
    page.get_by_label("Other settings (JSON)").fill('{"training": {"batch": 2, "length": 8}}')
    page.get_by_label("Held-out examples").set_input_files(foreign)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("#job-form-error")).to_contain_text("cold")
    one.wrong.clear()  # the browser tells of the refusal
    page.get_by_label("Held-out examples").set_input_files(examples)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="measured", level=1)).to_be_visible()
    sha256 = hashlib.sha256(examples.read_bytes()).hexdigest()
    assert site.state("measured")["settings"]["held_out"] == sha256
    expect(page.locator("#chart-accuracy .legend")).to_contain_text("at the server", timeout=60_000)
    site.stop("measured")


def test_examples_do_not_travel_in_the_open(browser, site):
    """A browser hashes nothing for a page that came over plain HTTP from another machine."""
    page = browser.new_page()
    page.goto(f"{site.server.url.replace('127.0.0.1', ELSEWHERE)}/#token={fleet.TOKEN}")
    page.get_by_role("button", name="Start a job").click()
    expect(page.get_by_label("Held-out examples")).to_be_disabled()
    expect(page.locator("#held-out-hint")).to_contain_text("open this page by HTTPS")
    page.context.close()
