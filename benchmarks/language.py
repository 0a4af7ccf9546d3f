"""How much of what LoRA in one place learns of a new topic does a fleet learn, of a language model?

    python benchmarks/language.py --data DATA/ag_news --out runs/language

A Llama of some million weights is made here: with a tokenizer of its own it is trained on the texts of three topics.
Then it is adapted to the fourth. By devices in the simulator that share rows, with what a job and an export start from
when nothing is said: no rate, no preset, no adapter is named. And in one place on the same rows: LoRA of rank 8 in all
blocks, as people do, AdamW, at that of some rates and after that of its passes which do best on the rows that devices
hold back; with `--same` once more by the fleet's own adapter, which tells what federation costs from what the adapter
does. A round takes each device once through its own rows, so that as many rounds as passes in one place see the same
examples as often; in one place there are at most as many passes as rounds.

Perplexity is of each token of texts that nobody trained on, measured by transformers and PEFT, also of what the fleet
learned: its adapter is loaded as anybody loads it. `closed` is the share of the fall in one place that the fleet has.
The same of the other topics says what was forgotten. The same command goes on where it stopped. Ends with 1 when less
than 80 % is closed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet import machine, read_rows, write_rows
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from edge_client.commands.options.adapter import AdapterOptions
from server.simulation.compute.work import opened
from server.simulation.plan import Plan, plan_for
from server.simulation.quiet import quiet_libraries
from server.simulation.run.run import simulate

CLOSED = 0.8
RATES = (3e-4, 1e-3, 3e-3)
HIGHEST = 2e-3
"""Of the rates of the model's own training, which rise to it and fall again."""
PATIENCE = 3
"""Passes in one place without a better one, after which it ends."""
BEFORE, ONE_PLACE, SAME, FLEET = "before", "one place", "same adapter", "fleet"
PAD, BEGIN, END = "<pad>", "<s>", "</s>"
Texts = Sequence[str]


# --- the model -------------------------------------------------------------------------------------------------------


def tokenizer_of(texts: Texts, options: argparse.Namespace) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [PAD, BEGIN, END]
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=options.vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    ends = [(name, special.index(name)) for name in (BEGIN, END)]
    made.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD, bos_token=BEGIN, eos_token=END)


def pretrained(texts: Texts, options: argparse.Namespace) -> Path:
    """The model's folder; what was trained of it before is read."""
    folder, kept = options.out / "model", options.out / "pretraining.pt"
    if (folder / "config.json").exists():
        return folder
    tokenizer = tokenizer_of(texts, options)
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=options.hidden, num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 32, intermediate_size=options.hidden * 8 // 3,
            max_position_embeddings=options.length, tie_word_embeddings=True,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=HIGHEST, weight_decay=0.1)
    steps = options.pretraining * math.ceil(len(texts) / options.rows)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, HIGHEST, total_steps=steps, pct_start=0.1)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    done = 0
    if kept.exists():
        state = torch.load(kept)
        done = state["done"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for number in range(done, options.pretraining):
        losses = passed(model, optimizer, encoded(tokenizer, texts, options), options.rows, number, schedule.step)
        print(f"  pretraining, pass {number + 1}: loss {np.mean(losses[-200:]):.3f}", file=sys.stderr, flush=True)
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"done": number + 1}, kept)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    kept.unlink(missing_ok=True)
    return folder


def encoded(tokenizer: Any, texts: Texts, options: argparse.Namespace) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=options.length)["input_ids"]


def passed(
    model: Any,
    optimizer: torch.optim.Optimizer,
    ids: Sequence[Sequence[int]],
    rows: int,
    number: int,
    stepped: Callable[[], None] = lambda: None,
) -> list[float]:
    """One pass over texts, in an order of its own; the loss of each step, a mean of texts as devices have it."""
    losses = list[float]()
    order = np.random.default_rng(number).permutation(len(ids))
    model.train()
    for start in range(0, len(order), rows):
        of_tokens, counted = token_losses(model, [ids[place] for place in order[start : start + rows]])
        loss = (of_tokens.sum(1) / counted.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stepped()
        losses.append(loss.item())
    return losses


def token_losses(model: Any, ids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's cross entropy from those before it, and which of them there are: [texts, length - 1]."""
    longest = max(map(len, ids))
    padded = torch.tensor([[*own, *[0] * (longest - len(own))] for own in ids])
    mask = torch.tensor([[1] * len(own) + [0] * (longest - len(own)) for own in ids])
    logits = model(input_ids=padded, attention_mask=mask).logits
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), padded[:, 1:], reduction="none")
    counted = mask[:, 1:].to(losses.dtype)
    return losses * counted, counted


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, texts: Texts, options: argparse.Namespace) -> float:
    model.eval()
    ids = sorted(encoded(tokenizer, texts, options), key=len)
    total = count = 0.0
    for start in range(0, len(ids), 32):
        losses, counted = token_losses(model, ids[start : start + 32])
        total, count = total + losses.sum().item(), count + counted.sum().item()
    return math.exp(total / count)


# --- whose the rows are ----------------------------------------------------------------------------------------------


def dealt(options: argparse.Namespace) -> Path:
    """A folder with the topic's rows, each of a client, and its test rows."""
    folder = options.out / "topic"
    train, test = (rows_of(options, name, topic=True) for name in ("train", "test"))
    own = options.examples or len(train) // options.clients
    rows = [{"text": text, "client": f"{place % options.clients:03}"} for place, text in enumerate(train)]
    write_rows(folder / "train.jsonl", rows[: own * options.clients])
    write_rows(folder / "test.jsonl", [{"text": text, "client": "000"} for text in test])
    return folder


def rows_of(options: argparse.Namespace, name: str, *, topic: bool) -> list[str]:
    rows = read_rows(options.data / f"{name}.jsonl")
    return [str(row["text"]) for row in rows if (str(row["label"]) == options.topic) is topic]


def planned(options: argparse.Namespace, model: Path) -> Plan:
    """The fleet, as `spry simulate` takes it where nothing but data and sizes are named."""
    asked = json.loads(options.settings)
    settings = {
        "rounds": options.passes, "per_round": options.clients, "evaluate_every": options.passes, **asked,
        "training": {"batch": options.batch, "length": options.length, **asked.get("training", {})},
    }  # fmt: skip
    return plan_for(
        method="spry", preset=options.preset, model=str(model), data=str(dealt(options)), task="causal-lm",
        settings=settings, adapter=asdict(AdapterOptions(**json.loads(options.adapter))), seed=options.seed,
        clients=options.clients, alpha=None, by="client", personal=False, able=options.able,
    )  # fmt: skip


def shared(plan: Plan) -> tuple[list[str], list[str]]:
    """The rows that devices train on, all together, and those that they hold back."""
    population, _ = opened(plan)
    clients = [population.client(number) for number in range(population.clients)]
    return (
        [one.text for own in clients for one in own.train],
        [one.text for own in clients for one in own.test],
    )


# --- both ways -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnePlace:
    """Training on all rows together, by one rate."""

    rate: float
    passes: int
    """After which it did best on the rows that devices hold back."""
    held_back: float
    """Perplexity there, after so many."""


def in_one_place(options: argparse.Namespace, folder: Path, out: Path, config: LoraConfig, rate: float) -> OnePlace:
    """Trains until held-back rows have been better some passes ago; the best adapter is kept."""
    rows, held_back = shared(planned(options, folder))
    tokenizer, base = loaded(folder)
    torch.manual_seed(options.seed)
    model = get_peft_model(base, copy.deepcopy(config))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    ids = encoded(tokenizer, rows, options)
    best = OnePlace(rate, 0, math.inf)
    for number in range(options.passes):
        passed(model, optimizer, ids, options.batch, number)
        perplexity_now = perplexity(model, tokenizer, held_back, options)
        if perplexity_now < best.held_back:
            best = OnePlace(rate, number + 1, perplexity_now)
            model.save_pretrained(str(out))
        elif number + 1 - best.passes >= PATIENCE:
            break
    return best


def best_of(options: argparse.Namespace, folder: Path, name: str, config: LoraConfig) -> tuple[OnePlace, Path]:
    """At the rate that does best; rates that were tried before are read."""
    tried = dict[Path, OnePlace]()
    for rate in options.rates:
        out = options.out / name.replace(" ", "-") / f"{rate:g}"
        kept = out / "held-back.json"
        if not kept.exists():
            kept.write_text(json.dumps(asdict(in_one_place(options, folder, out, config, rate))))
        tried[out] = one = OnePlace(**json.loads(kept.read_text()))
        where = f"{one.held_back:.2f} on rows held back after pass {one.passes}"
        print(f"  {name}, AdamW at {rate:g}: {where}", file=sys.stderr, flush=True)
    adapter = min(tried, key=lambda out: tried[out].held_back)
    return tried[adapter], adapter


def loaded(folder: Path) -> tuple[Any, Any]:
    factory: Any = AutoModelForCausalLM
    return AutoTokenizer.from_pretrained(folder), factory.from_pretrained(folder)


def people() -> LoraConfig:
    return LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])


def same(adapter: Path) -> LoraConfig:
    """What a fleet has, from its start."""
    config: Any = LoraConfig.from_pretrained(str(adapter))
    config.inference_mode = False
    return config


def measured(options: argparse.Namespace) -> dict[str, Any]:
    quiet_libraries()
    keep_to(options)
    model = pretrained(rows_of(options, "train", topic=False), options)
    plan, fleet = planned(options, model), options.out / "fleet"
    summary = simulate(plan, fleet, lambda line: show(line, options.passes))
    ways = {ONE_PLACE: best_of(options, model, ONE_PLACE, people())}
    if options.same:
        ways[SAME] = best_of(options, model, SAME, same(fleet / "adapter"))
    adapters = {BEFORE: None, **{name: adapter for name, (_, adapter) in ways.items()}, FLEET: fleet / "adapter"}
    scores = {name: scored(options, model, adapter) for name, adapter in adapters.items()}
    fall = {name: scores[BEFORE]["topic"] - values["topic"] for name, values in scores.items()}
    return {
        "perplexity": scores,
        "closed": {name: fall[FLEET] / fall[name] for name in ways},
        "best": {name: asdict(one) for name, (one, _) in ways.items()},
        "adapter": plan.adapter.told,
        "preset": plan.preset,
        "rounds": options.passes,
        "examples": len(shared(plan)[0]),
        "by the simulator": summary["perplexity"],
        "weights": sum(parameter.numel() for parameter in loaded(model)[1].parameters()),
        "machine": machine(),
    }


def scored(options: argparse.Namespace, folder: Path, adapter: Path | None) -> dict[str, float]:
    tokenizer, model = loaded(folder)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    texts = {name: rows_of(options, "test", topic=name == "topic") for name in ("topic", "others")}
    return {name: perplexity(model, tokenizer, part, options) for name, part in texts.items()}


def keep_to(options: argparse.Namespace) -> None:
    """What was made by other options would be taken for this command's."""
    adding = "out", "json", "same", "rates"
    asked = {name: str(value) for name, value in sorted(vars(options).items()) if name not in adding}
    kept = options.out / "options.json"
    before: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else asked
    if changed := [name for name in asked if before.get(name) != asked[name]]:
        sys.exit(f"{options.out} was made with other {', '.join(changed)}: give another --out")
    options.out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asked, indent=1) + "\n")


def show(line: Mapping[str, Any], rounds: int) -> None:
    print(f"  fleet, round {line['round']} of {rounds}: loss {line['loss']:.4f}", file=sys.stderr, flush=True)


def told(figures: dict[str, Any]) -> str:
    lines = [f"{'perplexity':<28}{'the topic':>12}{'the others':>12}"]
    for way, values in figures["perplexity"].items():
        best = figures["best"].get(way)
        name = way if best is None else f"{way}, {best['rate']:g}, {best['passes']} passes"
        lines.append(f"{name:<28}{values['topic']:>12.2f}{values['others']:>12.2f}")
    how = f"preset {figures['preset']}, {figures['adapter']}, {figures['rounds']} rounds, {figures['examples']} texts"
    closed = [f"{100 * share:.1f} % of what {way} closes" for way, share in figures["closed"].items()]
    return "\n".join([*lines, f"the fleet ({how}) closes {', '.join(closed)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="what was made and measured; the same command goes on")
    parser.add_argument("--topic", default="3", help="the label of the texts that the model has not seen")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--examples", type=int, default=60, help="of each device, a fifth held back; 0: all there are")
    parser.add_argument("--passes", type=int, default=20, help="rounds of the fleet, and in one place at most")
    parser.add_argument("--batch", type=int, default=8, help="texts of a step, in one place too")
    parser.add_argument("--length", type=int, default=64, help="tokens of a text")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="to choose from in one place")
    parser.add_argument("--same", action="store_true", help="in one place by the fleet's adapter too")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=192, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pretraining", type=int, default=3, help="passes over the other topics' texts")
    parser.add_argument("--rows", type=int, default=16, help="texts of a step of pretraining")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", help="another start of the fleet's settings than the one that fits")
    parser.add_argument("--able", type=float, default=1.0, help="the share of devices with memory for exact steps")
    parser.add_argument("--settings", default="{}", help="other settings of the job, as JSON")
    parser.add_argument("--adapter", default="{}", help="another adapter of the fleet, as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measured(options)
    print(json.dumps(figures) if options.json else f"{figures['machine']}\n{told(figures)}")
    sys.exit(figures["closed"][ONE_PLACE] < CLOSED)


if __name__ == "__main__":
    main()
