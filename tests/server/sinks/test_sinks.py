"""Curves in TensorBoard's files and in MLflow, read back by their own readers."""

import os
import random
import signal
import socket
import subprocess
import time

import httpx
import pytest

from server.sinks.sink import Curves, Point, SinkError, flat, open_sink, send

SETTINGS = {"rounds": 3, "training": {"learning_rate": 0.1, "mode": "epoch"}, "target": None}


def drawn(rounds: int, names=("loss", "accuracy_global")) -> list[Point]:
    return [Point(r, name, random.uniform(0.1, 2), 1.7e9 + r) for r in range(rounds) for name in names]


def in_tensorboard(folder) -> dict:
    """By TensorBoard's own reader: the steps, times and values of each curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder)).Reload()
    return {
        (event.step, tag): (event.value, event.wall_time)
        for tag in reader.Tags()["scalars"]
        for event in once(reader.Scalars(tag), lambda event: event.step)
    }


def in_mlflow(where, name="news") -> dict:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=str(where))
    (run,) = client.search_runs([client.get_experiment_by_name("spry").experiment_id])
    assert run.info.run_name == name
    return {
        (metric.step, of): (metric.value, metric.timestamp / 1000)
        for of in run.data.metrics
        for metric in once(client.get_metric_history(run.info.run_id, of), lambda metric: metric.step)
    }


def once(rows, key):
    """None stands there twice."""
    assert len({key(row) for row in rows}) == len(rows)
    return rows


def answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def tracking(tmp_path):
    """The address of a tracking server of MLflow's own, with a database."""
    program = os.environ.get("MLFLOW")
    if program is None:
        pytest.skip("needs the whole of MLflow (not installed: it is large): set MLFLOW to its program")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [program, "server", "--backend-store-uri", f"sqlite:///{tmp_path / 'runs.db'}", "--workers", "1",
               "--artifacts-destination", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 300
        while not answers(f"{address}/health"):
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(300)


@pytest.fixture(params=["tensorboard", "mlflow", "mlflow server"])
def place(request, tmp_path, monkeypatch):
    """Return what `--to` takes, and a reader of what is there."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if request.param == "mlflow server":
        address = request.getfixturevalue("tracking")
        return f"mlflow:{address}", lambda: in_mlflow(address)
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard", reason="TensorBoard, which reads its files, is not installed")
        return f"tensorboard:{tmp_path}", lambda: in_tensorboard(tmp_path / "news")
    return f"mlflow:{tmp_path / 'runs'}", lambda: in_mlflow(tmp_path / "runs")


def test_points_are_there_as_they_were_sent_and_once(place):
    to, read = place
    points = drawn(4)
    early = [point for point in points if point.round < 2]
    assert send(open_sink(to, Curves("j-1", "news", SETTINGS)), early) == len(early)
    assert read() == {point.key: pytest.approx((point.value, point.time), rel=1e-6) for point in early}
    sink = open_sink(to, Curves("j-1", "news", SETTINGS))  # as another process would
    assert send(sink, points) == len(points) - len(early)
    assert send(sink, points) == 0
    late = Point(1, "perplexity", 3.5, 1.7e9)  # of a round that is over
    assert send(sink, [late, *points, Point(9, "loss", float("nan"), 0.0)]) == 1
    sink.end()
    assert send(open_sink(to, Curves("j-1", "news", SETTINGS)), [late, *points]) == 0
    expected = {point.key: pytest.approx((point.value, point.time), rel=1e-6) for point in [*points, late]}
    assert read() == expected


def test_more_than_a_server_takes_at_once(place):
    to, read = place
    points = drawn(1200)
    send(open_sink(to, Curves("j-1", "news", {f"s{n}": n for n in range(150)})), points)
    assert read().keys() == {point.key for point in points}
    assert send(open_sink(to, Curves("j-1", "news", {})), points) == 0


def test_a_file_that_was_cut_off_is_completed(tmp_path):
    points = drawn(3)
    send(open_sink(f"tensorboard:{tmp_path}", Curves("j", "news", {})), points)
    (file,) = (tmp_path / "news").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert send(open_sink(f"tensorboard:{tmp_path}", Curves("j", "news", {})), points) == 1
    assert len(in_tensorboard(tmp_path / "news")) == len(points)


def test_a_run_of_mlflow_has_the_jobs_settings_and_ends(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "field trials")
    sink = open_sink(f"mlflow:{tmp_path}", Curves("j-1", "news", SETTINGS))
    client = MlflowClient(tracking_uri=str(tmp_path))
    experiment = client.get_experiment_by_name("field trials").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.data.params == {"rounds": "3", "training.learning_rate": "0.1", "training.mode": "epoch"}
    assert run.info.status == "RUNNING"
    sink.end()
    open_sink(f"mlflow:{tmp_path}", Curves("j-2", "news", SETTINGS))  # another job of that name
    assert sorted(run.info.status for run in client.search_runs([experiment])) == ["FINISHED", "RUNNING"]


def test_a_server_of_mlflow_has_the_run_and_says_nothing_between(tracking, capsys):
    from mlflow.tracking import MlflowClient

    settings = SETTINGS | {"note": "x" * 9000, "none": "", "list": [1, 2]}
    sink = open_sink(f"mlflow:{tracking}", Curves("j-1", "news", settings))
    send(sink, drawn(2))
    sink.end()
    assert capsys.readouterr().out == ""  # it may be a command's JSON
    client = MlflowClient(tracking_uri=tracking)
    (run,) = client.search_runs([client.get_experiment_by_name("spry").experiment_id])
    assert (run.info.status, run.data.params["training.mode"], run.data.params["list"]) == (
        "FINISHED",
        "epoch",
        "[1, 2]",
    )


def test_places_that_are_none(tmp_path):
    for to in ("tensorboard", "wandb:x", ""):
        with pytest.raises(SinkError, match=r"takes one of .*tensorboard.* got"):
            open_sink(to, Curves("j", "news", {}))
    (tmp_path / "news").write_text("")
    with pytest.raises(SinkError, match="a file stands there"):
        open_sink(f"tensorboard:{tmp_path}", Curves("j", "news", {}))
    with pytest.raises(SinkError, match="MLflow takes no curves at nosuch://x"):
        open_sink("mlflow:nosuch://x", Curves("j", "news", {}))


def test_a_silent_server_is_told_at_once():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        begun = time.monotonic()
        with pytest.raises(SinkError, match=r"no MLflow server answers at http://127\.0\.0\.1"):
            open_sink(f"mlflow:http://127.0.0.1:{bound.getsockname()[1]}", Curves("j", "news", {}))
        assert time.monotonic() - begun < 60


def test_settings_become_one_list():
    assert flat(SETTINGS) == {"rounds": "3", "training.learning_rate": "0.1", "training.mode": "epoch"}
