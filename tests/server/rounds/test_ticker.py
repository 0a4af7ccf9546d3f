"""The background: what hinders one job hinders no other."""

import pytest

from server.cli.job_lines import job_line
from server.rounds.ticker import Ticker
from tests.server.rounds.test_rounds import AVERAGE, play


@pytest.fixture
def ticker(server):
    services = server.http.app.state.services
    return Ticker(server.store, services.offers, services.stopping)


@pytest.fixture
def jobs(server, bundle_name):
    """Two of them, with all the reports of a round, and the file of the first one's update."""
    for name in ("one", "two"):
        server.create_job(bundle_name, name, per_round=1, over_selection=1, optimizers=AVERAGE, rounds=3)
    server.advance()
    for name in ("one", "two"):
        device = server.device()
        task = device.task(job=name)
        device.send(task, device.update(task, 0.1 if name == "one" else 0.2))
        if name == "one":
            (update,) = [path for path in server.store.blobs.folder.rglob("*") if path.is_file()]
    return update


def damaged(path):
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), damaged], ids=["missing", "damaged"])
def test_a_job_that_cannot_go_on_is_set_aside_and_may_go_on_later(server, jobs, ticker, harm):
    content = jobs.read_bytes()
    harm(jobs)
    ticker._carry_on()
    one = server.job("one")
    assert one["state"] == "set-aside"
    assert f"{jobs} is missing or damaged" in one["reason"]
    assert server.job("two")["version"] == 1
    assert 'spry_jobs{state="set-aside"} 1.0' in server.call("GET", "/metrics").text
    assert f"one: set-aside ({one['reason']}; when that is mended: spry job resume), 0 of 3 rounds" in job_line(one)
    deed = server.call("GET", "/v1/audit").json()[0]
    assert (deed["actor"], deed["action"], deed["subject"]) == ("server", "job-set-aside", one["id"])

    device = server.device()
    assert device.check_in(job="one")["task"] is None
    ticker._carry_on()
    assert server.call("GET", "/v1/audit").json()[2] == deed  # it is left alone until somebody resumes it

    jobs.write_bytes(content)
    assert server.call("POST", "/v1/jobs/one/resume").json()["state"] == "running"
    ticker._carry_on()
    one = server.job("one")
    assert (one["state"], one["reason"], one["version"]) == ("running", "", 1)
    play(server, [device], [0.1])


def test_a_job_with_a_defect_is_set_aside(server, jobs, ticker):
    with server.store.database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE tasks SET report = '[]' WHERE job = (SELECT id FROM jobs WHERE name = 'one')"
        )
    ticker._carry_on()
    assert server.job("one")["state"] == "set-aside"
    assert "a defect, TypeError" in server.job("one")["reason"]
    assert server.job("two")["version"] == 1


def test_what_passes_hinders_no_other_job_and_sets_none_aside(server, jobs, ticker):
    in_the_way = [server.store.blobs.folder / f"{number:02x}" for number in range(256)]
    in_the_way = [path for path in in_the_way if not path.exists()]
    for path in in_the_way:
        path.touch()  # new weights cannot be written
    with pytest.raises(OSError, match="File exists"):
        ticker._carry_on()
    assert {(server.job(name)["state"], server.job(name)["version"]) for name in ("one", "two")} == {("running", 0)}
    for path in in_the_way:
        path.unlink()
    ticker._carry_on()
    assert {server.job(name)["version"] for name in ("one", "two")} == {1}


def test_devices_that_need_a_lost_file_are_asked_to_come_again(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, optimizers=AVERAGE)
    server.advance()
    device = server.device()
    play(server, [device], [0.1])
    server.store.models._newest.clear()  # as in a server that has just started
    for path in server.store.blobs.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    answer = device.call("GET", "/v1/jobs/job/weights", 503)
    assert answer.json()["code"] == "damaged"
    assert answer.headers["Retry-After"] == "60"
