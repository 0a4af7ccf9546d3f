"""Measure what a new user gets from their own file: seconds, bytes and accuracy, beside training in one place.

    python benchmarks/own_data.py --rows tickets.csv
    python benchmarks/own_data.py --rows tickets.csv --draws 5
    python benchmarks/own_data.py --rows FOLDER --take 245 --draws 5      train and test apart, as `spry new` takes them
    python benchmarks/own_data.py --rows FOLDER --each 20 --by question,title --no-one-place       many classes

Runs `spry new` and `spry up --try 4` on the file in a folder of its own, nothing else being said, and takes the time to
the first update that the server has accepted and to the end of the job. Then it trains the same model on the same rows
in one place, as people do: LoRA of rank 8 in all blocks, float32, AdamW, as many passes over the rows as there were
rounds, at that of three rates which does best on a fifth of the rows, and measures both on the rows that `spry new`
held out. Needs the extras `demo` and `server`; some minutes on two cores.

A few rows held out say little: of 55, one is 1.8 points. `--draws N` plays N users, the first as above and the others
with other rows to learn from: as many of the file, and the rest held out; or `--take M` of a folder's training rows,
and its test rows held out. Differences are taken in each draw, on the same rows, and their means have standard errors.

`--each N` makes a set of N rows for each value of a column of a folder's rows, and holds others out; `--divide K` cuts
each class into K by the words of its texts. With it and always, logistic regression in one place is measured too: on
the bundle's own frozen features, and on the encoder's mean over tokens with a penalty by cross-validation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from small_sets import MeanFeatures, made, regression
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from edge_client.checkpoints import local_model
from edge_client.commands.interrupts import end_as_interrupted
from server.cli.connection import Access, Administrator
from server.project.file import FILE, written
from server.project.file import read as read_project
from server.project.folder import Project
from server.start.baseline import Files, Rows, baseline
from server.start.job import known_job

RATES = (3e-4, 1e-3, 3e-3)
Deal = Callable[[Project], None] | None
SPRY = sys.executable, "-m", "edge_client"


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    commands: int
    looked: float
    """Seconds of `spry new`."""
    first_update: float
    """Seconds of both commands to the first accepted update, export and all."""
    whole: float
    """Seconds of both commands."""
    bytes: int
    """The size of the adapter's folder."""
    accuracy: float
    in_one_place: float | None
    rows: int
    held_out: int
    regression: tuple[float, float] | None = None
    """Logistic regression on the bundle's frozen features, and on the mean over tokens; None for pairs of texts."""


def accepted(project: Project) -> bool:
    """Whether the server has taken an update; the project may still be starting."""
    name = known_job(project)
    if name is None or not project.admin_token.is_file():
        return False
    with Administrator(Access(project.url, project.admin_token.read_text().strip())) as administrator:
        job = administrator.get(f"/v1/jobs/{name}")
    return bool(job["done"] or (job["progress"] or {}).get("reported"))


def played(rows: Path, work: Path, devices: int, model: Path | None, deal: Deal = None) -> Result:
    """Both commands, as a new user types them; between them the rows may be dealt anew."""
    begun = time.monotonic()
    named = ["--model", str(model.resolve())] if model else []
    new = [*SPRY, "new", "mine", "--data", str(rows.resolve()), *named]
    subprocess.run(new, cwd=work, check=True, stdout=sys.stderr)
    looked = time.monotonic() - begun
    folder = work / "mine"
    if deal is not None:
        deal(Project(folder))
    up = subprocess.Popen([*SPRY, "up", "--try", str(devices)], cwd=folder, stdout=sys.stderr)
    try:
        while not accepted(Project(folder)):
            if up.poll() is not None:
                sys.exit(f"spry up ended with {up.returncode} before the first update")
            time.sleep(0.2)
        first = time.monotonic() - begun
        if code := up.wait():
            sys.exit(f"spry up ended with {code}")
        whole = time.monotonic() - begun
        project = Project(folder)
        subprocess.run(
            [*SPRY, "adapter", "download", "mine", "--out", "adapter"], cwd=folder, check=True, stdout=sys.stderr
        )
        with Administrator(Access(project.url, project.admin_token.read_text().strip())) as administrator:
            job = administrator.get("/v1/jobs/mine")
    finally:
        subprocess.run([*SPRY, "down"], cwd=folder, check=True, stdout=sys.stderr)
    size = sum(file.stat().st_size for file in (folder / "adapter").rglob("*") if file.is_file())
    train, held_out = map(len, halves(project))
    return Result(2, looked, first, whole, size, job["metrics"]["accuracy"], None, train, held_out)


def preset_named(project: Project, preset: str) -> None:
    """Another in the project's file than `spry new` chose."""
    path = project.folder / FILE
    whole = read_project(path)
    path.write_text(written(msgspec.structs.replace(whole, job=msgspec.structs.replace(whole.job, preset=preset)), {}))


def dealt(project: Project, number: int) -> None:
    """Other rows to learn from, as many as before, and the others held out."""
    train, held_out = (project.path(name) for name in (project.file.data.train, project.file.data.held_out))
    rows = train.read_bytes().splitlines(keepends=True)
    count, rows = len(rows), rows + held_out.read_bytes().splitlines(keepends=True)
    order = np.random.default_rng(number).permutation(len(rows))
    train.write_bytes(b"".join(rows[place] for place in order[:count]))
    held_out.write_bytes(b"".join(rows[place] for place in order[count:]))


def taken(rows: Path, folder: Path, number: int, take: int) -> Path:
    """A folder with some of the training rows of another: what `spry new` chooses depends on how many there are."""
    shutil.copytree(rows, folder)
    (train,) = folder.glob("train.*")
    lines = train.read_bytes().splitlines(keepends=True)
    names = [lines.pop(0)] if train.suffix in (".csv", ".tsv") else []
    order = np.random.default_rng(number).permutation(len(lines))
    train.write_bytes(b"".join([*names, *(lines[place] for place in order[:take])]))
    return folder


# --- in one place ----------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def halves(project: Project) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows to learn from, and those held out."""
    return read(project.path(project.file.data.train)), read(project.path(project.file.data.held_out))


class OnePlace:
    """LoRA by backpropagation on all rows at once."""

    def __init__(self, project: Project) -> None:
        self.model = project.file.model
        self.folder = str(local_model(self.model.source) or self.model.source)
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def trained(self, rows: list[dict[str, Any]], rate: float, passes: int) -> Any:
        torch.manual_seed(0)
        base = AutoModelForSequenceClassification.from_pretrained(self.folder, num_labels=len(self.model.labels))
        model = get_peft_model(
            base, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
        )
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
        order = np.random.default_rng(0)
        for _ in range(passes):
            for part in np.array_split(order.permutation(len(rows)), max(1, len(rows) // self.model.batch)):
                chosen = [rows[index] for index in part]
                loss = torch.nn.functional.cross_entropy(self.logits(model, chosen), self.labels(chosen))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model.eval()

    def accuracy(self, model: Any, rows: list[dict[str, Any]]) -> float:
        with torch.no_grad():
            return float((self.logits(model, rows).argmax(-1) == self.labels(rows)).float().mean())

    def logits(self, model: Any, rows: list[dict[str, Any]]) -> torch.Tensor:
        pairs = [row["text_pair"] for row in rows] if "text_pair" in rows[0] else None
        length = self.model.length
        texts = [row["text"] for row in rows]
        return model(
            **self.tokenizer(texts, pairs, padding=True, truncation=True, max_length=length, return_tensors="pt")
        ).logits

    def labels(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        names = {name: number for number, name in enumerate(self.model.labels)}
        return torch.tensor([names[str(row["label"]).strip()] for row in rows])

    def best(self, rows: list[dict[str, Any]], held_out: list[dict[str, Any]], passes: int) -> float:
        kept, watched = rows[len(rows) // 5 :], rows[: len(rows) // 5]
        scores = {rate: self.accuracy(self.trained(kept, rate, passes), watched) for rate in RATES}
        rate = max(scores, key=scores.__getitem__)
        print(f"in one place, on a fifth of the rows: {scores}", file=sys.stderr)
        return self.accuracy(self.trained(rows, rate, passes), held_out)


def regressed(project: Project) -> tuple[float, float] | None:
    """Return the accuracies of logistic regression in one place; None where no encoder is read by its mean."""
    train, held_out = halves(project)
    files = Files(project.path(project.file.data.train), project.path(project.file.data.held_out), ())
    own = baseline(project.bundle, files, lambda _line: None)
    if own is None or "text_pair" in train[0]:
        return None
    model = project.file.model
    encoder = MeanFeatures(str(local_model(model.source) or model.source), model.length)
    names = {name: number for number, name in enumerate(model.labels)}
    given, measured = (
        Rows(encoder.of([row["text"] for row in part]), np.array([names[str(row["label"]).strip()] for row in part]))
        for part in (train, held_out)
    )
    return own.in_one_place, regression(given, measured, len(names))


def chosen(options: argparse.Namespace, folder: Path, number: int) -> Path:
    """Return a user's rows."""
    if options.each:
        return made(options.rows, folder, options.by, options.each, options.divide, number)
    return taken(options.rows, folder, number, options.take) if options.take else options.rows


def drawn(options: argparse.Namespace, number: int) -> Result:
    """One user."""

    def deal(project: Project) -> None:
        if number and not (options.take or options.each):
            dealt(project, number)
        if options.preset is not None:
            preset_named(project, options.preset)

    with tempfile.TemporaryDirectory(prefix="own-data-") as folder:
        rows = chosen(options, Path(folder) / "rows", number)
        result = played(rows, Path(folder), options.devices, options.model, deal)
        project = Project(Path(folder) / "mine")
        result = replace(result, regression=regressed(project))
        if options.no_one_place:
            return result
        return replace(result, in_one_place=OnePlace(project).best(*halves(project), project.file.job.rounds))


def apart(results: Sequence[Result], other: Callable[[Result], float | None]) -> tuple[float, float | None] | None:
    """Return the mean of how much the accuracy is above another one, and its standard error; None without that."""
    found = [one.accuracy - known for one in results if (known := other(one)) is not None]
    if not found:
        return None
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else None


OTHERS: dict[str, Callable[[Result], float | None]] = {
    "one place": lambda one: one.in_one_place,
    "regression on the bundle's frozen features": lambda one: one.regression and one.regression[0],
    "regression on the encoder's mean": lambda one: one.regression and one.regression[1],
}
"""Accuracies with which the fleet's is compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=Path, required=True, help="a .csv or .jsonl file of texts and classes, or a folder"
    )
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--model", type=Path, help="a folder with another encoder")
    parser.add_argument("--draws", type=int, default=1, help="users, each with other rows to learn from")
    parser.add_argument("--take", type=int, default=0, help="of the training rows of a folder with train and test")
    parser.add_argument("--each", type=int, default=0, help="rows of each class of a folder's to learn from")
    parser.add_argument(
        "--by", type=lambda names: names.split(","), default=("text", "label"), help="--each: the columns of both"
    )
    parser.add_argument("--divide", type=int, default=1, help="--each: parts of each class, by the words of its texts")
    parser.add_argument("--preset", help="in place of the default, to compare")
    parser.add_argument("--no-one-place", action="store_true", help="leave the comparison out")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    end_as_interrupted()  # so that the server and its devices end too
    results = list[Result]()
    for number in range(options.draws):
        results.append(result := drawn(options, number))
        if not options.json:
            show(result)
    found = {name: both for name, other in OTHERS.items() if (both := apart(results, other)) is not None}
    if options.json:
        difference, error = found.get("one place", (None, None))
        summed_up = {"difference": difference, "standard_error": error, "draws": [asdict(one) for one in results]}
        print(json.dumps(asdict(results[0]) | summed_up))
    elif len(results) > 1:
        print(f"{len(results)} draws: {np.mean([one.accuracy for one in results]):.3f}")
        for name, (difference, error) in found.items():
            beside = f"  {100 * difference:+.1f} points beside {name}"
            print(beside if error is None else f"{beside}, standard error {100 * error:.1f}")


def show(result: Result) -> None:
    print(
        f"{result.commands} commands; spry new took {result.looked:.1f} s, the first accepted update came after "
        f"{result.first_update:.0f} s, the end after {result.whole:.0f} s; the adapter has {result.bytes / 1e3:.0f} kB"
    )
    beside = "" if result.in_one_place is None else f", in one place {result.in_one_place:.3f}"
    if result.regression is not None:
        own, mean = result.regression
        beside += f"; logistic regression on the bundle's frozen features {own:.3f}, on the encoder's mean {mean:.3f}"
    print(
        f"accuracy on {result.held_out} rows held out, learned from {result.rows}: {result.accuracy:.3f}{beside}",
        flush=True,
    )


if __name__ == "__main__":
    main()
