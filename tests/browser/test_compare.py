"""Jobs beside each other, in a real browser."""

from playwright.sync_api import expect

from tests.browser.tabs import PHONE


def test_jobs_beside_each_other(tab, site):
    site.job("one", rounds=3)
    site.reached("one", lambda job: job["state"] == "ended")
    site.job("other", {"learning_rate": 0.5}, rounds=2, aggregation="median")
    site.reached("other", lambda job: job["state"] == "ended")
    site.job("third", rounds=1)
    site.reached("third", lambda job: job["state"] == "ended")
    one = tab(PHONE)
    one.open("one")
    page = one.page
    page.get_by_role("link", name="Compare jobs").click()
    jobs = page.locator("#compare-jobs")
    jobs.get_by_label("one").check()
    expect(jobs.get_by_label("third")).to_be_checked()  # the newest two are there at first
    jobs.get_by_label("third").uncheck()
    legend = page.locator("#chart-both-loss .legend")
    expect(legend.locator("li")).to_have_count(2)
    expect(legend).to_contain_text("one")
    expect(legend).to_contain_text("other")
    expect(page.locator("#chart-both-loss canvas")).to_be_visible()
    expect(page.locator("#chart-both-accuracy")).to_be_hidden()  # nobody measured it
    expect(page.locator("#compare-facts")).to_contain_text("3 of 3")
    titles = page.locator("#compare-settings thead th").all_inner_texts()
    differ = page.locator("#compare-settings tbody tr")
    expect(differ).to_have_count(3)
    told = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in differ.all()}
    of = {name: [values[titles.index(job) - 1] for job in ("one", "other")] for name, values in told.items()}
    assert of == {
        "training.learning_rate": ["0.01", "0.5"], "rounds": ["3", "2"], "aggregation": ["mean", "median"],
    }  # fmt: skip
    page.get_by_label("Curves over").select_option("passes")
    page.locator("#chart-both-loss summary").click()
    expect(page.locator("#chart-both-loss thead th").first).to_have_text("passes")
    assert one.fits()
    page.reload()  # the address has them
    expect(jobs.get_by_label("other")).to_be_checked()
    expect(jobs.get_by_label("third")).not_to_be_checked()
    expect(page.get_by_label("Curves over")).to_have_value("passes")
    expect(differ).to_have_count(3)


def test_one_job_alone_is_nothing_to_compare(tab, fresh):
    fresh.job("alone")
    one = tab(at=fresh)
    one.open()
    expect(one.page.get_by_role("link", name="Compare jobs")).to_be_hidden()
    one.turn_to("compare")
    expect(one.page.locator("#compare-few")).to_be_visible()
    expect(one.page.locator("#compare-body")).to_be_hidden()
