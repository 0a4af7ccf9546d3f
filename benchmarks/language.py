"""Measure how much a fleet learns of what LoRA learns about a new kind of text, with a language model.

    python benchmarks/language.py --model SOURCE --data DATA/gsm8k --out runs/language

SOURCE is what `spry simulate --model` takes; the rows are conversations or questions with answers, such as GSM8K's.
Only rows that fit whole into `--length` tokens are taken, so that every answer is measured to its end. Devices' rows
are split by the length of the question, at `--alpha` over its eighths. In the simulator, on the same rows, as many
rounds and as many steps of a device:

- default: what a job and an export start from when nothing is said: no rate, no preset, no adapter is named.
- fedavg: LoRA of rank 8, alpha 16, in all blocks, AdamW by backpropagation on the devices, the mean of their weights;
  at each of `--rates`, of which the one counts that ends with the least loss on the held-out answers, which favours it.
- one place: the same LoRA on as many of the same rows in one process, by AdamW that is never started anew, as many
  steps as all devices take together; at each of `--rates` too.
- half able: the default, where half of the devices can go back through one block alone.
- forward: the default, where no device goes back at all (`--estimator forward`).

Printed are the loss, perplexity and accuracy of each token of held-out answers, and `closed`: the share of the fall in
loss of fedavg's best rate, after as many rounds. With `--answers N` the first N questions are answered in full by
transformers, greedily, with the adapter as PEFT loads it: the share whose last number is right, and the loss of all
held-out answers in float32. The same command goes on where it stopped; `--show` prints what there is so far. Ends with
1 when the default closes less than 90 %.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from fleet import machine, read_rows, write_rows
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.conversations import example_of, known_row
from edge_client.data.encoder import TextEncoder
from edge_client.data.sequences import sequence_of
from edge_client.data.templates import Template
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import combined
from server.simulation.compute.scores import score
from server.simulation.compute.work import Worker, learner_of
from server.simulation.plan import Plan, plan_for
from server.simulation.quiet import quiet_libraries
from server.simulation.run.run import simulate

CLOSED = 0.9
TASK = "causal-lm"
EIGHTHS = 8
"""Kinds of questions, by their length."""
PEOPLES = AdapterOptions(rank=8, alpha=16.0, last_blocks=0)
"""The baseline: FedAvg with LoRA of rank 8."""
BEFORE, DEFAULT, FEDAVG, ONE_PLACE, HALF, FORWARD = "before", "default", "fedavg", "one place", "half able", "forward"
Figures = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One way to learn."""

    name: str
    rate: float | None = None
    """None: its own."""

    @property
    def folder(self) -> str:
        name = self.name.replace(" ", "-")
        return name if self.rate is None else f"{name}-{self.rate:g}"


def arms_of(options: argparse.Namespace) -> Iterator[Arm]:
    for name in options.arms:
        if name in (FEDAVG, ONE_PLACE):
            yield from (Arm(name, rate) for rate in options.rates)
        else:
            yield Arm(name)


def planned(options: argparse.Namespace, arm: Arm, rows: Path, clients: int, seed: int) -> Plan:
    """An arm, as `spry simulate` takes it where nothing but data and sizes are named."""
    steps: dict[str, Any] = {"batch": options.batch, "length": options.length, "iterations": options.steps}
    sizes = {"rounds": options.rounds, "per_round": options.per_round, "evaluate_every": options.every}
    method, adapter = "spry", AdapterOptions()
    if arm.rate is not None:
        method, adapter, steps["learning_rate"] = "fedavg", PEOPLES, arm.rate
    if arm.name == ONE_PLACE:
        steps["iterations"] *= options.rounds * options.per_round
        sizes, clients = {"rounds": 1, "per_round": 1}, 1
    if arm.name == FORWARD:
        steps["estimator"] = "forward"
    return plan_for(
        method=method, preset=None, model=options.model, data=str(rows), task=TASK,
        settings={**sizes, "training": steps}, adapter=asdict(adapter), seed=seed, clients=clients,
        alpha=options.alpha, by="length", personal=False, able=0.5 if arm.name == HALF else 1.0,
        arithmetic=options.arithmetic,
    )  # fmt: skip


def dealt(options: argparse.Namespace, clients: int) -> Path:
    """A folder with rows that fit, of devices and held-out ones."""
    folder = options.out / f"rows-{clients}"
    if folder.exists():
        return folder
    learner = learner_of(planned(options, Arm(DEFAULT), folder, clients, 0), ())
    encoder = TextEncoder(learner.tokenizer, learner.manifest, 1, options.length + 1)
    for name, count in (("test", options.held_out), ("train", clients * options.examples)):
        fitting = list[dict[str, Any]]()
        for read in read_rows(options.data / f"{name}.jsonl"):
            row = dict(known_row(read, has_template=True))
            if len(sequence_of(example_of(row, learner.template), encoder).ids) <= options.length:
                fitting.append(row)
            if len(fitting) == count:
                break
        write_rows(folder.with_suffix(".partial") / f"{name}.jsonl", by_length(fitting))
    folder.with_suffix(".partial").rename(folder)
    return folder


def by_length(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the eighth in which their question is by its length."""
    order = sorted(range(len(rows)), key=lambda place: len(question_of(rows[place])))
    eighth = {place: number * EIGHTHS // len(rows) for number, place in enumerate(order)}
    return [{**row, "length": str(eighth[place])} for place, row in enumerate(rows)]


def question_of(row: Mapping[str, Any]) -> str:
    return str(row["messages"][0]["content"])


# --- learning --------------------------------------------------------------------------------------------------------


def learn(options: argparse.Namespace, clients: int, seed: int) -> None:
    """All arms of a fleet, as far as they have not been run."""
    rows, folder = dealt(options, clients), folder_of(options, clients, seed)
    if not (folder / "before.json").exists():
        write_json(folder / "before.json", at_start(planned(options, Arm(DEFAULT), rows, clients, seed)))
    for arm in arms_of(options):
        name = f"{clients} devices, seed {seed}, {arm.folder}"
        plan = planned(options, arm, rows, clients, seed)
        simulate(plan, folder / arm.folder, lambda line, name=name: show(name, line))
        print(told(options), file=sys.stderr, flush=True)


def at_start(plan: Plan) -> Figures:
    """Measure the pretrained model before any round."""
    worker = Worker(plan)
    length = plan.settings.training.length
    encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, 8, length)
    kind = task_named(TASK)
    return kind.told(combined([score(worker.learner, encoder, worker.tested, worker.learner.initial)]))


def show(name: str, line: Mapping[str, Any]) -> None:
    held_out = f", held out {line['test_loss']:.4f}" if "test_loss" in line else ""
    print(f"  {name}, round {line['round']}: loss {line['loss']:.4f}{held_out}", file=sys.stderr, flush=True)


def folder_of(options: argparse.Namespace, clients: int, seed: int) -> Path:
    return options.out / f"{clients}-devices-{seed}"


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


# --- answers in full -------------------------------------------------------------------------------------------------


def answer(options: argparse.Namespace, clients: int, seed: int) -> None:
    """The model as it came and what arms learned, as anybody loads it."""
    folder = folder_of(options, clients, seed)
    adapters = {BEFORE: None} | {name: folder / arm.folder / "adapter" for name, arm in best(options, folder).items()}
    rows = read_rows(options.out / f"rows-{clients}" / "test.jsonl")
    for name, adapter in adapters.items():
        kept = folder / f"answers-{name.replace(' ', '-')}.json"
        if not kept.exists():
            write_json(kept, by_transformers(options, adapter, rows))


def by_transformers(options: argparse.Namespace, adapter: Path | None, rows: Sequence[dict[str, Any]]) -> Figures:
    tokenizer, factory = AutoTokenizer.from_pretrained(options.model), AutoModelForCausalLM
    model: Any = factory.from_pretrained(options.model, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    model.eval()
    asked = rows[: options.answers]
    right = [ends_alike(answered(model, tokenizer, row), str(row["messages"][1]["content"])) for row in asked]
    loss = answer_loss(model, tokenizer, Template.beside(Path(options.model)), rows)
    return {"right": fmean(right), "loss": loss}


@torch.no_grad()
def answered(model: Any, tokenizer: Any, row: Mapping[str, Any]) -> str:
    asked = tokenizer.apply_chat_template(
        row["messages"][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**asked, do_sample=False, max_new_tokens=192)
    return str(tokenizer.decode(written[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))


def ends_alike(one: str, other: str) -> bool:
    """Whether the last numbers of two texts are the same."""
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", "")) for text in (one, other)]
    return all(numbers) and float(numbers[0][-1]) == float(numbers[1][-1])


@torch.no_grad()
def answer_loss(model: Any, tokenizer: Any, template: Template, rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean cross entropy of the tokens of answers, with what ends them."""
    losses = list[Tensor]()
    for row in rows:
        chat = template.chat(row["messages"])
        encoded = tokenizer(chat.text, add_special_tokens=False, return_offsets_mapping=True, return_tensors="pt")
        ids, places = encoded["input_ids"], encoded["offset_mapping"][0].tolist()
        learnt = torch.tensor([any(at < stop and start < end for start, stop in chat.answers) for at, end in places])
        logits = model(input_ids=ids).logits[0, :-1]
        losses.append(cross_entropy(logits, ids[0, 1:], reduction="none")[learnt[1:]])
    return torch.cat(losses).mean().item()


# --- the table -------------------------------------------------------------------------------------------------------


def finished(folder: Path, arm: Arm) -> Figures | None:
    """The final scores of one run."""
    path = folder / arm.folder
    if not (path / "summary.json").exists():
        return None
    last = json.loads((path / "rounds.jsonl").read_text().splitlines()[-1])
    names = "test_loss", "perplexity", "accuracy", "passes"
    sent = {name: last[name] / last["clients"] for name in ("bytes_up", "bytes_down")}
    return {name: last[name] for name in names} | sent


def best(options: argparse.Namespace, folder: Path) -> dict[str, Arm]:
    """Each way that has been run, at the rate that ended best."""
    chosen = dict[str, tuple[float, Arm]]()
    for arm in arms_of(options):
        if found := finished(folder, arm):
            loss = found["test_loss"]
            if loss < chosen.get(arm.name, (math.inf, arm))[0]:
                chosen[arm.name] = loss, arm
    return {name: arm for name, (_, arm) in chosen.items()}


def measured(options: argparse.Namespace, clients: int, seed: int) -> dict[str, Figures]:
    """The rows of one fleet's table."""
    folder = folder_of(options, clients, seed)
    if not (folder / "before.json").exists():
        return {}
    rows: dict[str, Figures] = {BEFORE: json.loads((folder / "before.json").read_text())}
    for name, arm in best(options, folder).items():
        rows[name] = (finished(folder, arm) or {}) | ({} if arm.rate is None else {"rate": arm.rate})
    for name, figures in rows.items():
        kept = folder / f"answers-{name.replace(' ', '-')}.json"
        if kept.exists():
            own = json.loads(kept.read_text())
            figures.update({"right": own["right"], "by transformers": own["loss"]})
        if FEDAVG in rows:
            before = rows[BEFORE]["test_loss"]
            figures["closed"] = (before - figures["test_loss"]) / (before - rows[FEDAVG]["test_loss"])
    return rows


COLUMNS = {
    "test_loss": ("loss", "{:.4f}"), "perplexity": ("perplexity", "{:.3f}"), "accuracy": ("accuracy", "{:.3f}"),
    "closed": ("closed", "{:.1%}"), "passes": ("passes", "{:.2f}"), "rate": ("rate", "{:g}"),
    "bytes_up": ("up, MB", "mb"), "bytes_down": ("down, MB", "mb"), "right": ("right", "{:.1%}"),
    "by transformers": ("loss, PEFT", "{:.4f}"),
}  # fmt: skip


def told(options: argparse.Namespace) -> str:
    """Tables of all fleets, as far as they have come."""
    lines = [machine()]
    for clients in options.devices:
        for seed in options.seeds:
            if rows := measured(options, clients, seed):
                lines += ["", f"{clients} devices, seed {seed}, {options.rounds} rounds of {options.per_round}"]
                lines += table(rows)
    return "\n".join(lines)


def table(rows: Mapping[str, Figures]) -> Iterator[str]:
    shown = [name for name in COLUMNS if any(name in figures for figures in rows.values())]
    yield "| | " + " | ".join(COLUMNS[name][0] for name in shown) + " |"
    yield "|---|" + "---|" * len(shown)
    for way, figures in rows.items():
        yield f"| {way} | " + " | ".join(cell(name, figures) for name in shown) + " |"


def cell(name: str, figures: Figures) -> str:
    if name not in figures:
        return ""
    form = COLUMNS[name][1]
    return f"{figures[name] / 1e6:.2f}" if form == "mb" else form.format(figures[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a pretrained language model, as `spry simulate` takes it")
    parser.add_argument("--data", type=Path, required=True, help="train.jsonl and test.jsonl, of conversations")
    parser.add_argument("--out", type=Path, required=True, help="what was made and measured; the same command goes on")
    parser.add_argument("--arms", nargs="+", default=[DEFAULT, FEDAVG, ONE_PLACE, HALF, FORWARD])
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--per-round", type=int, default=8)
    parser.add_argument("--examples", type=int, default=40, help="rows of each device, a fifth of them held back")
    parser.add_argument("--held-out", type=int, default=64, help="answers that nobody trains on")
    parser.add_argument("--alpha", type=float, default=1.0, help="of the split by the questions' length")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--every", type=int, default=4, help="rounds between measurements")
    parser.add_argument("--steps", type=int, default=2, help="of a device in a round")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=160, help="tokens of a row at most")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3], help="of fedavg and of one place")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arithmetic", default="float32", help="or bfloat16")
    parser.add_argument("--answers", type=int, default=0, help="questions answered in full; needs a folder")
    parser.add_argument("--show", action="store_true", help="print what there is")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    quiet_libraries()
    fleets = [(clients, seed) for clients in options.devices for seed in options.seeds]
    for clients, seed in () if options.show else fleets:
        learn(options, clients, seed)
        if options.answers:
            answer(options, clients, seed)
    figures = {f"{clients} devices, seed {seed}": measured(options, clients, seed) for clients, seed in fleets}
    print(json.dumps({"machine": machine(), "fleets": figures}) if options.json else told(options))
    closed = [rows[DEFAULT]["closed"] for rows in figures.values() if "closed" in rows.get(DEFAULT, {})]
    sys.exit(not closed or min(closed) < CLOSED)


if __name__ == "__main__":
    main()
