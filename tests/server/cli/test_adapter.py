"""Test what a job has learned, in each format, as somebody takes it from a terminal."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest

from edge_client.client.client import Client
from tests.server.cli.conftest import SETTINGS, TOKEN

TEXTS = [{"text": text} for text in ("the tea is hot, ok.", "don't 42", "naïve tea", "the the ok.")]


@pytest.fixture
def spoken(ok, address, talker, tmp_path, request) -> str:
    """A job of a language model, which has ended after two rounds with one device."""
    job = json.loads(ok("job", "create", request.node.name, "--bundle", talker, *SETTINGS, "--json"))
    token = json.loads(ok("token", "create", "--json"))["token"]
    client = Client(address, token, TEXTS, home=tmp_path / "home", job=job["name"], name="pi", holdout=0, threads=1)
    client.run(rounds=2)
    client.close()
    while json.loads(ok("job", "show", job["id"], "--json"))["state"] != "ended":
        time.sleep(0.05)
    return job["name"]


@pytest.fixture(autouse=True)
def _logs_again():
    yield
    logging.disable(logging.NOTSET)  # merging silences its libraries


def test_for_llama_cpp_and_ollama(ok, spoken, tmp_path):
    import gguf

    out = tmp_path / "gguf"
    told = ok("adapter", "download", spoken, "--format", "gguf", "--out", out)
    assert "--lora" in told
    assert "ollama create" in told
    assert {path.name for path in out.iterdir()} == {"adapter.gguf", "Modelfile", "spry.json"}
    reader = gguf.GGUFReader(out / "adapter.gguf")
    assert reader.get_field("general.type").contents() == "adapter"
    assert any(np.abs(tensor.data).max() > 0 for tensor in reader.tensors if tensor.name.endswith("lora_b"))
    lines = (out / "Modelfile").read_text()
    assert lines.startswith("# ollama create NAME -f Modelfile; the base is tiny-talker\nFROM ./base.gguf\nADAPTER ./")
    assert 'PARAMETER stop "<|im_end|>"' in lines
    again = tmp_path / "again"
    about = json.loads(ok("adapter", "download", spoken, "--format", "gguf", "--out", again, "--json"))
    assert about == {"out": str(again), "format": "gguf", "version": 2, "trained": True}
    assert (again / "adapter.gguf").read_bytes() == (out / "adapter.gguf").read_bytes()


@pytest.mark.filterwarnings("ignore")  # of transformers and PEFT
def test_merged_with_its_base(ok, wrong, spoken, talker_folder, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged, adapter = tmp_path / "merged", tmp_path / "adapter"
    where = "--format", "merged", "--model", talker_folder, "--out", merged
    told = ok("adapter", "download", spoken, *where)
    assert [line for line in told.splitlines() if "load it" in line] == [
        f"{merged}: load it with AutoModel…from_pretrained({str(merged)!r})"
    ]
    ok("adapter", "download", spoken, "--out", adapter)
    base = AutoModelForCausalLM.from_pretrained(talker_folder)
    ids = AutoTokenizer.from_pretrained(merged)("the tea is hot", return_tensors="pt").input_ids
    with torch.no_grad():
        before = base(ids).logits
        expected = PeftModel.from_pretrained(base, str(adapter))(ids).logits
        found = AutoModelForCausalLM.from_pretrained(merged)(ids).logits
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (found - before).abs().max() > 1e-3
    assert (merged / "Modelfile").read_text().splitlines()[1] == "FROM ."
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "exists; choose another --out or give --overwrite" in wrong("adapter", "download", spoken, *where)


@pytest.mark.filterwarnings("ignore")  # of transformers and PEFT
def test_merged_as_one_file_for_llama_cpp(ok, wrong, spoken, talker_folder, tmp_path):
    out = tmp_path / "whole"
    where = "--format", "merged-gguf", "--model", talker_folder
    told = ok("adapter", "download", spoken, *where, "--out", out)
    assert f"llama-cli -m {out}/model.gguf" in told
    assert {path.name for path in out.iterdir()} == {"model.gguf", "Modelfile"}
    assert (out / "Modelfile").read_text().splitlines()[1] == "FROM ./model.gguf"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_no_gguf_adapter_can_say(ok, wrong, taken_part, tmp_path):
    told = wrong("adapter", "download", taken_part, "--format", "gguf", "--out", tmp_path / "no")
    assert "trained a task layer (classifier" in told
    whole = wrong(
        "adapter", "download", taken_part, "--format", "merged-gguf", "--model", "x", "--out", tmp_path / "no"
    )
    assert "no whole GGUF is made of this model: it is trained for seq-cls, not for causal-lm; take the" in whole
    assert not (tmp_path / "no").exists()


def test_formats_that_are_none(wrong, address, job, tmp_path):
    at = "adapter", "download", job["name"], "--out", tmp_path / "no"
    assert "--format must be one of peft, gguf, merged, merged-gguf, got 'onnx'" in wrong(*at, "--format", "onnx")
    assert "give both or none" in wrong(*at, "--format", "merged")
    assert "give both or none" in wrong(*at, "--format", "merged-gguf")
    assert "give both or none" in wrong(*at, "--model", "x")
    told = {form: (409, f"--format {form} --model BASE") for form in ("merged", "merged-gguf")}
    for form, (status, said) in (told | {"onnx": (422, "must be one of")}).items():
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(f"{address}/v1/jobs/{job['id']}/adapter?format={form}", headers=headers)
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True)


def test_nothing_learned_is_not_handed_out_without_a_word(spry, wrong, job, tmp_path):
    out = tmp_path / "adapter"
    told = wrong("adapter", "download", job["name"], "--out", out)
    assert "has learned nothing yet" in told
    assert "--version 0" in told
    assert not out.exists()
    done = spry("adapter", "download", job["name"], "--out", out, "--version", "0", "--json")
    assert (done.code, json.loads(done.out)["trained"]) == (0, False)
    assert done.err == "version 0 is what the job starts from: it changes nothing yet\n"
    assert json.loads((out / "spry.json").read_text())["trained"] is False


# --- a hub ---


class Hub(BaseHTTPRequestHandler):
    """As much of a hub's API as its client asks for a repository and a commit of small files."""

    def do_HEAD(self):
        self._answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers.get("Authorization"), body))
        if self.path == "/api/repos/create":
            if b"taken" in body:
                self._answer({"error": "You don't have the rights to create a model under this namespace"}, 403)
            else:
                self._answer({"url": f"{self.server.url}/me/news"})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            self._answer({"commitUrl": f"{self.server.url}/me/news/commit/1", "commitOid": "1", "success": True})
        else:
            self._answer({}, 200)

    def do_GET(self):
        self._answer({"siblings": [], "sha": "0", "id": "me/news"}, 404 if "taken" in self.path else 200)

    def _answer(self, told, status=200):
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url, server.asked = f"http://127.0.0.1:{server.server_port}", []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def pushed(hub: str, *args: str) -> subprocess.CompletedProcess:
    """In a process of its own: the hub's client reads where the hub is when it is imported."""
    variables = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_of_these_tests"}
    command = [sys.executable, "-c", "from edge_client.commands.cli import main; main()", "adapter", "push", *args]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_pushed_to_a_hub_by_its_own_client(taken_part, spry, hub):
    done = pushed(hub.url, taken_part, "--to", "me/news", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"pushed to {hub.url}/me/news\n"
    (made,) = (json.loads(body) for path, _, body in hub.asked if path == "/api/repos/create")
    assert (made["name"], made["organization"]) == ("news", "me")
    assert made.get("private") or made.get("visibility") == "private"  # as versions of the client say it
    (commit,) = (body for path, _, body in hub.asked if "/commit/" in path)
    lines = [json.loads(line) for line in commit.splitlines()]
    assert {one["value"]["path"] for one in lines if one["key"] == "file"} == {
        "adapter_config.json", "adapter_model.safetensors", "spry.json",
    }  # fmt: skip
    assert lines[0]["value"]["summary"] == f"{taken_part}, version 2"
    assert {token for _, token, _ in hub.asked} == {"Bearer hf_of_these_tests"}


def test_a_push_that_no_hub_takes(taken_part, spry, hub):
    refused = pushed(hub.url, taken_part, "--to", "taken/news")
    assert refused.returncode == 2
    assert "the hub did not take taken/news" in refused.stderr
    begun = time.monotonic()
    silent = pushed("http://127.0.0.1:9", taken_part, "--to", "me/news")
    assert silent.returncode == 2
    assert silent.stderr.startswith("error: the hub 127.0.0.1 (")
    assert silent.stderr.count("\n") == 1
    assert time.monotonic() - begun < 120
