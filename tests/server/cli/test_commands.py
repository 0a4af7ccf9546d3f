"""Test what an administrator does from a terminal, against a real server."""

import json
import logging
import re
import subprocess
import time
from collections import Counter

import pytest

from edge_client.client.client import Client
from edge_client.errors import SpryError
from edge_client.format import size
from edge_client.wire.invitation import invitation_in
from server.cli.connection import Access, Administrator
from server.cli.job_lines import began_in, outliers_in, to_beat
from server.privacy.accountant import epsilon_of, noise_for
from tests.server.cli.conftest import ROWS
from tests.warm import python

# --- jobs ---


def test_a_jobs_life(ok, wrong, tiny):
    name = "50% of it, with #signs?"
    told = ok("job", "create", name, "--bundle", tiny)
    assert (
        f"is running with --preset auto, which fits its adapter; follow it with `spry job show {name} --follow`" in told
    )
    assert ok("job", "pause", name) == f"job {name} is paused\n"
    assert "paused" in ok("job", "list")
    assert ok("job", "resume", name) == f"job {name} is running\n"
    assert ok("job", "show", name).startswith(f"{name}: running, 0 of 100 rounds")
    assert ok("job", "stop", name) == f"job {name} is ended\n"
    assert "ended: stopped by an administrator" in ok("job", "show", name)
    assert f"{name}: ended" in (followed := ok("job", "show", name, "--follow"))
    assert followed.endswith("ended: stopped by an administrator\n")
    assert "has ended" in wrong("job", "resume", name)
    assert "already; choose another name" in wrong("job", "create", name, "--bundle", tiny)


def test_settings_of_a_job(ok, tiny, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"rounds": 7, "training": {"epochs": 3}, "optimizers": {"units": {"kind": "fedadam"}}}')
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    args = "--settings", file, "--set", "training.epochs=2", "--set", "assignment=all", "--held-out", held_out
    made = json.loads(ok("job", "create", "set", "--bundle", tiny, *args, "--deadline", "9.5", "--json"))
    settings = made["settings"]
    assert (settings["rounds"], settings["deadline"], settings["assignment"]) == (7, 9.5, "all")
    assert (settings["training"]["epochs"], settings["training"]["batch"], settings["training"]["length"]) == (2, 2, 8)
    assert settings["optimizers"]["units"]["kind"] == "fedadam"
    assert len(settings["held_out"]) == 64
    as_text = "--settings", file.read_text(), *args[2:]
    told = json.loads(ok("job", "create", "text", "--bundle", tiny, *as_text, "--deadline", "9.5", "--json"))
    assert {**told["settings"], "seed": settings["seed"]} == settings
    assert json.loads(ok("job", "show", "set", "--json"))["settings"] == settings
    most = max(Counter(row["label"] for row in ROWS).values()) / len(ROWS)
    told = f"on the same held-out examples: always the most frequent class {most:.4f}"
    assert told in ok("job", "show", "set").splitlines()
    assert settings in [one["settings"] for one in json.loads(ok("job", "list", "--json"))]


def test_what_there_is_to_beat():
    known = {"majority": 0.25, "f1": 0.9, "f1_head": 0.53126}
    told = "always the most frequent class 0.2500; the task layer without the units 0.5313"
    assert to_beat({"score": "f1", "metrics": known}) == [f"on the same held-out examples: {told}"]
    assert to_beat({"score": "f1", "metrics": {"f1": 0.9}}) == []


def test_options_of_a_job(ok, tiny):
    args = "--iterations 3 --kind rademacher --head-learning-rate 0.5 --server-learning-rate 0.25 --evaluate-every 4"
    more = "--units-per-client 2 --assignment all --patience 2 --set device_evaluation=1"
    made = json.loads(ok("job", "create", "options", "--bundle", tiny, *args.split(), *more.split(), "--json"))
    settings, training = made["settings"], made["settings"]["training"]
    assert (training["iterations"], training["kind"], training["head_learning_rate"]) == (3, "rademacher", 0.5)
    assert settings["optimizers"]["units"]["learning_rate"] == 0.25
    assert [settings[name] for name in ("evaluate_every", "units_per_client", "assignment", "patience")] == [
        4,
        2,
        "all",
        2,
    ]


def test_iterations_are_counted_from_one(ok, tiny):
    ok("job", "create", "steps", "--bundle", tiny, "--mode", "iteration", "--iterations", "3")
    until = time.monotonic() + 300
    while "round 1, iteration" not in (shown := ok("job", "show", "steps")):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "round 1, iteration 1 of 3: 0 of 10 reported" in shown
    ok("job", "stop", "steps")


def test_the_papers_preset(ok, tiny):
    made = json.loads(ok("job", "create", "paper", "--bundle", tiny, "--preset", "paper", "--rounds", "3", "--json"))
    assert made["settings"]["rounds"] == 3
    assert made["settings"]["training"]["head"] == "joint"


def test_a_job_starts_from_the_preset_that_fits_its_adapter(ok, wrong, narrow):
    def settings(name, *options):
        return json.loads(ok("job", "create", name, "--bundle", narrow, "--set", "seed=1", *options, "--json"))[
            "settings"
        ]

    fitting = settings("fitting")
    assert fitting == settings("named", "--preset", "bottleneck")
    assert fitting["training"]["exact_blocks"] == 2
    assert settings("less", "--set", "training.exact_blocks=1")["training"]["exact_blocks"] == 1
    plain = settings("plain", "--preset", "default")
    assert (plain["training"]["mode"], plain["training"]["directions"]) == ("epoch", 2)
    exact = settings("exact", "--estimator", "exact")
    assert exact["training"] == plain["training"] | {"estimator": "exact"}
    assert "is running with --preset bottleneck, which fits its adapter; follow" in ok(
        "job", "create", "x", "--bundle", narrow
    )
    assert "--preset pairs is gone" in wrong("job", "create", "y", "--bundle", narrow, "--preset", "pairs")


def test_a_job_that_ran(ok, taken_part):
    while not json.loads(ok("job", "show", taken_part, "--json"))["up"]:
        time.sleep(0.05)  # bytes are written together, now and then
    shown = ok("job", "show", taken_part)
    assert re.search(r"devices sent [\d.]+ kB and fetched [\d.]+ kB", shown)
    assert "the server sees each device's update" in shown
    assert shown.startswith(f"{taken_part}: ended, 2 of 2 rounds")
    assert re.search(r"^gradients in round 2: 1 device exact through \d blocks?$", shown, re.MULTILINE)
    rows = [line.split() for line in shown.splitlines() if line[:1].isdigit()]
    assert [row[:3] for row in rows] == [["2", "done", "1"], ["1", "done", "1"]]
    lines = ok("job", "show", taken_part, "--follow", "--json").splitlines()
    assert json.loads(lines[-1])["done"] == 2
    (row,) = [line for line in ok("job", "list").splitlines() if line.startswith(taken_part)]
    assert "2 of 2" in row


def test_a_private_job_tells_its_noise_and_what_it_costs(ok, wrong, tiny):
    budget = "--set", "privacy_epsilon=8", "--set", "privacy_times=4", "--rounds", "9"
    made = ok("job", "create", "private", "--bundle", tiny, *budget)
    noise = noise_for(8.0, 1e-5, 4)
    told = "privacy: epsilon 0.00 so far, 8.00 for a device in 4 rounds, the most that there may be"
    assert f"{told} (delta 1e-05, noise {noise:.3g} clips)" in made
    assert "devices tell no losses, accuracies, features or numbers of examples" in made
    assert told in ok("job", "show", "private")
    other = ok("job", "create", "noisy", "--bundle", tiny, "--set", "privacy_noise=2", "--rounds", "1")
    assert f"{epsilon_of(2.0, 1e-5, 1):.2f} for a device in 1 round, the most" in other
    assert "leave out device_evaluation" in wrong(
        "job", "create", "x", "--bundle", tiny, *budget, "--set", "device_evaluation=1"
    )


def test_outliers_are_named_those_first_that_were_most_often():
    def row(number, *found):
        return {"number": number, "result": {"outlying": [{"device": d, "name": n, "why": w} for d, n, w in found]}}

    often, once = ("d1", "shed", "its head goes 5.0 times as far"), ("d2", "roof", "its head goes 4.0 times as far")
    assert outliers_in([row(3, once, often), row(2, often), {"number": 1, "result": None}]) == [
        "outliers in the newest 3 rounds, averaged where they cannot move the mean far:",
        "  d1 (shed) in 2; in round 3 its head goes 5.0 times as far",
        "  d2 (roof) in 1; in round 3 its head goes 4.0 times as far",
    ]
    assert outliers_in([{"number": 1, "result": {}}]) == []


def test_the_newest_round_says_how_old_its_updates_were():
    rounds = [{"number": 3, "began": ""}, {"number": 2, "began": "of 1 update …"}, {"number": 1, "began": "of 2 …"}]
    assert began_in(rounds) == ["updates began, in round 2: of 1 update …"]
    assert began_in(rounds[:1]) == []


def test_a_bundle_is_named_with_its_job(ok, tiny):
    ok("job", "create", "with a name", "--bundle", tiny, "--bundle-name", "tickets, spring")
    with Administrator(Access.of(None, None, None)) as administrator:
        assert "tickets, spring" in {bundle["name"] for bundle in administrator.get("/v1/bundles")}
    ok("job", "stop", "with a name")


# --- tokens and devices ---


def test_tokens(spry, ok, wrong, address, tmp_path):
    done = spry("token", "create", "ten boards", "--uses", "10", "--expires", "12h")
    assert len(done.out.strip()) > 20
    assert done.err == "good for 10 devices, 12 h; not shown again\n"
    kept = next(token for token in json.loads(ok("token", "list", "--json")) if token["label"] == "ten boards")
    assert done.out.strip() not in json.dumps(kept)
    assert ok("token", "revoke", kept["id"]).startswith(f"token {kept['id']} is revoked")
    (row,) = [line for line in ok("token", "list").splitlines() if "ten boards" in line]
    assert row.split("ten boards")[1].split() == ["0", "of", "10", "revoked"]
    client = Client(address, done.out.strip(), ROWS, home=tmp_path / "h", patience=5)
    with pytest.raises(SpryError, match="revoked"):
        client.run(once=True)
    client.close()
    assert "there is no token 'none'" in wrong("token", "revoke", "none")


def test_a_token_that_names_a_publisher(spry, wrong, address, tmp_path):
    assert spry("keys", "make", tmp_path / "publisher.key").code == 0
    public = (tmp_path / "publisher.key.pub").read_text().strip()
    token = spry("token", "create", "--trust", tmp_path / "publisher.key.pub").out.strip()
    assert token.endswith(f".{public}")
    client = Client(address, token, ROWS, home=tmp_path / "h", patience=5)
    client.run(once=True)
    client.close()
    assert client.store.publisher() == public
    assert "is no public key" in wrong("token", "create", "--trust", tmp_path / "publisher.key")


def test_a_token_as_a_qr_code(spry, address, tmp_path):
    assert spry("keys", "make", tmp_path / "publisher.key").code == 0
    public = (tmp_path / "publisher.key.pub").read_text().strip()
    done = spry("token", "create", "--qr", "--trust", tmp_path / "publisher.key.pub")
    *picture, command, _ = done.err.splitlines()
    invited = invitation_in(command.split("'")[1])
    assert command == f"spry join '{invited}' --data FILE"
    assert (invited.server, invited.token) == (address, done.out.strip())
    assert invited.token.endswith(public)
    assert len([line for line in picture if "█" in line]) > 15
    made = json.loads(spry("token", "create", "--json").out)
    assert invitation_in(made["invitation"]).token == made["token"]


def test_people(spry, ok, wrong, monkeypatch):
    done = spry("access", "create", "alice", "--role", "viewer")
    assert done.err == "alice signs in with it, or sets SPRY_ADMIN_TOKEN to it; not shown again\n"
    (row,) = [line for line in ok("access", "list").splitlines() if "alice" in line]
    assert row.split()[1] == "viewer"
    assert done.out.strip() not in ok("access", "list", "--json")
    with monkeypatch.context() as alice:
        alice.setenv("SPRY_ADMIN_TOKEN", done.out.strip())
        ok("token", "list")
        assert "alice has the role viewer, and this takes operator" in wrong("token", "create")
    assert ok("access", "revoke", "alice") == "alice may not use the server any more\n"
    assert "there is no person 'alice'" in wrong("access", "revoke", "alice")
    assert json.loads(spry("access", "create", "bob", "--json").out)["role"] == "viewer"
    assert "is or was somebody's" in wrong("access", "create", "alice")
    assert "body.role" in wrong("access", "create", "carol", "--role", "king")


@pytest.mark.parametrize("expires", ["soon", "12", "-1h", "1.5h", ""])
def test_what_is_no_time(wrong, expires):
    assert "--expires takes a number and one of s, m, h, d" in wrong("token", "create", f"--expires={expires}")


def test_limits_of_tokens(wrong):
    assert "body.uses" in wrong("token", "create", "--uses", "0")
    assert "body.seconds" in wrong("token", "create", "--expires", "0s")


def test_devices(ok, wrong, taken_part):
    while (device := json.loads(ok("devices", "list", "--json"))[-1])["profile"] is None:
        time.sleep(0.05)  # profiles are written together, now and then
    assert (device["name"], device["profile"]["runtimes"][0]) == ("pi", "onnx")
    (row,) = [line for line in ok("devices", "list").splitlines() if device["id"] in line]
    assert "ago" in row
    assert size(device["profile"]["resident_bytes"]) in row
    assert ok("devices", "revoke", device["id"]) == f"device {device['id']} is revoked\n"
    (row,) = [line for line in ok("devices", "list").splitlines() if device["id"] in line]
    assert "revoked" in row
    assert "there is no device 'd-none'" in wrong("devices", "revoke", "d-none")


# --- adapters ---


def test_an_adapter(ok, wrong, taken_part, tmp_path):
    out = tmp_path / "adapter"
    assert "PeftModel.from_pretrained" in ok("adapter", "download", taken_part, "--out", out)
    names = {"adapter_model.safetensors", "adapter_config.json", "spry.json"}
    assert {path.name for path in out.iterdir()} == names
    newest = (out / "adapter_model.safetensors").read_bytes()
    assert json.loads((out / "spry.json").read_text())["version"] == 2

    assert "exists; choose another --out or give --overwrite" in wrong("adapter", "download", taken_part, "--out", out)
    ok("adapter", "download", taken_part, "--out", out, "--version", "0", "--overwrite")
    assert (out / "adapter_model.safetensors").read_bytes() != newest
    assert {path.name for path in out.iterdir()} == names
    missing = "adapter", "download", taken_part, "--out", tmp_path / "other", "--version", "9"
    assert "9" in wrong(*missing)
    assert not (tmp_path / "other").exists()
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a folder" in wrong("adapter", "download", taken_part, "--out", file, "--overwrite")


def test_merging(ok, taken_part, model_folder, tmp_path):
    """In a process of its own: the command silences the libraries' logs."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    adapter, out = tmp_path / "adapter", tmp_path / "merged"
    ok("adapter", "download", taken_part, "--out", adapter)
    words = "merge", adapter, model_folder, "--labels", "no,maybe,yes", "--out", out
    command = [python(), "-c", "from edge_client.commands.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    merged = AutoModelForSequenceClassification.from_pretrained(out)
    assert merged.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    encoded = AutoTokenizer.from_pretrained(out)(["the ice", "it"], return_tensors="pt", padding=True)
    with torch.no_grad():
        assert merged(**encoded).logits.shape == (2, 3)


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_merged(ok, spry, taken_part, model_folder, tmp_path):
    adapter, damaged, full = tmp_path / "adapter", tmp_path / "damaged", tmp_path / "full"
    ok("adapter", "download", taken_part, "--out", adapter)
    ok("adapter", "download", taken_part, "--out", damaged)
    (damaged / "adapter_model.safetensors").write_bytes(b"\1\2\3")
    full.mkdir()
    (full / "file").touch()
    new = "--out", tmp_path / "new"
    for args, message in (
        ((tmp_path / "none", model_folder, *new), "holds no adapter_config.json"),
        ((adapter, model_folder, *new, "--task", "poetry"), "--task must be one of"),
        ((adapter, model_folder, "--out", full), "exists; choose another --out"),
        ((adapter, model_folder, *new, "--labels", "5"), "give what the export was given"),
        ((damaged, model_folder, *new, "--labels", "3"), "does not fit"),
    ):
        done = spry("merge", *args)
        logging.disable(logging.NOTSET)  # the command silences its libraries
        last = done.err.splitlines()[-1]  # torchao logs what it could not load
        assert (done.code, last[:7]) == (2, "error: "), done.err
        assert message in last
    assert not (tmp_path / "new").exists()


def test_words_in_tables_stay_whole(capsys, monkeypatch):
    """However narrow the terminal is: ids are copied from there."""
    from server.cli.common import show_table

    monkeypatch.setenv("COLUMNS", "40")
    row = ("d-0123456789ab", "a board by the door", "waiting", "onnx, executorch", "22.1 GB")
    show_table(("id", "name", "state", "runtimes", "memory"), [row], "none")
    head, line = capsys.readouterr().out.splitlines()
    assert line.split("  ") == list(row)
    assert head.split() == ["id", "name", "state", "runtimes", "memory"]


def test_what_others_wrote_cannot_steer_a_terminal(capsys):
    """Names of before there was a refusal, and of other servers."""
    from server.cli.common import say, show_table

    show_table(("name",), [("[red]\x1b[31m\u202e",)], "none")
    say("ended: \x1b]0;owned\x07\nand a line")
    out = capsys.readouterr().out
    assert "[red]\\x1b[31m\\u202e" in out
    assert "ended: \\x1b]0;owned\\x07\\nand a line\n" in out
    assert "\x1b" not in out
