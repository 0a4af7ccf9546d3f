"""Two jobs beside each other, in a real browser."""

from playwright.sync_api import expect

from tests.browser.tabs import PHONE


def test_two_jobs_beside_each_other(tab, site):
    site.job("one", rounds=3)
    site.reached("one", lambda job: job["state"] == "ended")
    site.job("other", {"learning_rate": 0.5}, rounds=2, aggregation="median")
    site.reached("other", lambda job: job["state"] == "ended")
    one = tab(PHONE)
    one.open("one")
    page = one.page
    page.get_by_role("link", name="Compare two jobs").click()
    page.get_by_label("First").select_option("one")
    page.get_by_label("Second").select_option("other")
    expect(page.locator("#chart-both-loss .legend")).to_contain_text("one")
    expect(page.locator("#chart-both-loss .legend")).to_contain_text("other")
    expect(page.locator("#chart-both-loss canvas")).to_be_visible()
    expect(page.locator("#chart-both-accuracy")).to_contain_text("Neither job has measured it.")
    expect(page.locator("#compare-facts")).to_contain_text("3 of 3")
    differ = page.locator("#compare-settings tbody tr")
    expect(differ).to_have_count(3)
    told = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in differ.all()}
    assert told == {
        "training.learning_rate": ["0.01", "0.5"], "rounds": ["3", "2"], "aggregation": ["mean", "median"],
    }  # fmt: skip
    assert one.fits()
    page.reload()  # the address has both
    expect(page.get_by_label("Second").locator("option:checked")).to_have_text("other")
    expect(differ).to_have_count(3)


def test_one_job_alone_is_nothing_to_compare(tab, fresh):
    fresh.job("alone")
    one = tab(at=fresh)
    one.open()
    expect(one.page.get_by_role("link", name="Compare two jobs")).to_be_hidden()
    one.turn_to("compare")
    expect(one.page.locator("#compare-few")).to_be_visible()
    expect(one.page.locator("#compare-body")).to_be_hidden()
