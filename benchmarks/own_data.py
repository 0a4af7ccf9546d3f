"""What a new user gets of their own file: two commands, seconds, bytes and accuracy, beside training in one place.

    python benchmarks/own_data.py --rows tickets.csv

Runs `spry new` and `spry up --try 4` on the file in a folder of its own, nothing else being said, and takes the time to
the first update that the server has accepted and to the end of the job. Then it trains the same model on the same rows
in one place, as people do: LoRA of rank 8 in all blocks, float32, AdamW, as many passes over the rows as there were
rounds, at that of three rates which does best on a fifth of the rows, and measures both on the rows that `spry new`
held out. Needs the extras `demo` and `server`; some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from edge_client.checkpoints import local_folder
from server.cli.connection import Access, Administrator
from server.project.folder import Project
from server.start.job import known_job

RATES = (3e-4, 1e-3, 3e-3)
SPRY = sys.executable, "-m", "edge_client"


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    commands: int
    looked: float
    """Seconds of `spry new`."""
    first_update: float
    """Seconds of both commands to the first accepted update, export and all."""
    whole: float
    """Seconds of both commands."""
    bytes: int
    """Of the adapter's folder."""
    accuracy: float
    in_one_place: float | None
    rows: int
    held_out: int


def accepted(project: Project) -> bool:
    """Whether the server has taken an update; the project may still be starting."""
    name = known_job(project)
    if name is None or not project.admin_token.is_file():
        return False
    with Administrator(Access(project.url, project.admin_token.read_text().strip())) as administrator:
        job = administrator.get(f"/v1/jobs/{name}")
    return bool(job["done"] or (job["progress"] or {}).get("reported"))


def played(rows: Path, work: Path, devices: int, model: Path | None) -> Result:
    """Both commands, as a new user types them."""
    begun = time.monotonic()
    named = ["--model", str(model.resolve())] if model else []
    new = [*SPRY, "new", "mine", "--data", str(rows.resolve()), *named]
    subprocess.run(new, cwd=work, check=True, stdout=sys.stderr)
    looked = time.monotonic() - begun
    folder = work / "mine"
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
    train, held_out = (len(read(project.path(name))) for name in (project.file.data.train, project.file.data.held_out))
    return Result(2, looked, first, whole, size, job["metrics"]["accuracy"], None, train, held_out)


# --- in one place ----------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class OnePlace:
    """LoRA by backpropagation on all rows at once."""

    def __init__(self, project: Project) -> None:
        self.model = project.file.model
        self.folder = str(local_folder(self.model.source) or self.model.source)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a .csv or .jsonl file of texts and classes")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--model", type=Path, help="a folder with another encoder")
    parser.add_argument("--no-one-place", action="store_true", help="leave the comparison out")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="own-data-") as folder:
        result = played(options.rows, Path(folder), options.devices, options.model)
        if not options.no_one_place:
            project = Project(Path(folder) / "mine")
            train, held_out = (
                read(project.path(project.file.data.train)),
                read(project.path(project.file.data.held_out)),
            )
            best = OnePlace(project).best(train, held_out, project.file.job.rounds)
            result = Result(**{**asdict(result), "in_one_place": best})
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(
        f"{result.commands} commands; spry new took {result.looked:.1f} s, the first accepted update came after "
        f"{result.first_update:.0f} s, the end after {result.whole:.0f} s; the adapter has {result.bytes / 1e3:.0f} kB"
    )
    beside = "" if result.in_one_place is None else f", in one place {result.in_one_place:.3f}"
    print(f"accuracy on {result.held_out} rows held out, learned from {result.rows}: {result.accuracy:.3f}{beside}")


if __name__ == "__main__":
    main()
