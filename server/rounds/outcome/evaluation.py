"""Evaluate weights on held-out examples, by the bundle's own programs, and by devices' evaluations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import examples_for
from edge_client.data.sources import json_source
from edge_client.data.templates import Template
from edge_client.generation.answers import asked_by, scores_of
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import Generator
from edge_client.runtimes.runtime import available, command_for, open_runtime, unasked
from edge_client.step.stepper import Stepper
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import Score, TaskType
from edge_client.training.epoch import evaluate as judged
from edge_client.wire.protocol import Report
from server.errors import Refusal
from server.jobs.job import Job
from server.storage.store import Store
from server.strategy.mean import mean_claim

if TYPE_CHECKING:
    from edge_client.data.examples import Examples

HEAD_ALONE, BEFORE = "_head", "_before"
"""The suffixes of scores: of the task layer by itself, and of the model before any round."""


def evaluate(store: Store, job: Job, weights: Weights, *, done: int) -> dict[str, float]:
    """Measure the task's scores on held-out examples: accuracy, exact match and F1, or perplexity and answers'.

    After some of the rounds that are `done`, baselines are measured too: under the main score's name and
    `_head` the task layer's score by itself, under the scores' names and `_before` those of a model without a task
    layer before any round.
    """
    assert job.settings.held_out is not None
    bundle = store.bundles.open(job.bundle)
    manifest, training = bundle.manifest, job.settings.training
    name = runtime_for(store, job.bundle)
    examples = _held_out(store, job.bundle, job.settings.held_out)
    encoder = TextEncoder(bundle.tokenizer(), manifest, training.batch, training.length)
    with open_runtime(name, bundle.folder, threads=1) as runtime:
        stepper = Stepper(manifest, runtime, name, training.batch, training.length, manifest.directions[0])

        def logits(batch: Batch, values: Weights) -> Any:
            return stepper.forward(batch.tokens, batch.labels, values).logits

        others = _compared(store, job, weights, done)
        score, *beside = judged(logits, examples, encoder, task_named(manifest.model.task), [weights, *others.values()])
        written: dict[str, float] = {}
        if most := job.settings.evaluate_answers:
            assert manifest.generation is not None  # the job was made on such a bundle
            decoder = Decoder(manifest, runtime, name, weights)
            generator = Generator(decoder, bundle.tokenizer(), manifest.generation.ends)
            written = scores_of(generator, examples, most)
    task = task_named(manifest.model.task)
    told: dict[str, float] = {}
    for name, one in zip(others, beside, strict=True):
        figures = _figures(task, one)
        told |= {f"{kind}{name}": figures[kind] for kind in ((task.main_score,) if name == HEAD_ALONE else figures)}
    return _figures(task, score) | told | written


def _compared(store: Store, job: Job, weights: Weights, done: int) -> dict[str, Weights]:
    """Choose which other weights are measured after so many rounds; each takes as long as the model's own.

    The task layer by itself at evaluations 1, 2, 4, 8 and so on, and the last: a few points show how the two grow
    apart. The model before any round at the first evaluation.
    """
    settings = job.settings
    number = done // settings.evaluate_every
    if not store.bundles.manifest(job.bundle).head:
        return {BEFORE: store.models.initial(job)} if number <= 1 else {}
    if done != settings.rounds and (number == 0 or number & (number - 1)):
        return {}
    alone = _without_units(store, job, weights)
    return {} if alone is None else {HEAD_ALONE: alone}


def _without_units(store: Store, job: Job, weights: Weights) -> Weights | None:
    """Take the task layer as it stands, on the model as it was before any unit learned; None where there is no unit.

    A layer trained on that model alone may score more, but nobody trains one.
    """
    manifest = store.bundles.manifest(job.bundle)
    if not manifest.units:
        return None
    return store.models.initial(job) | {name: weights[name] for name in manifest.head_names}


def task_of(store: Store, job: Job) -> TaskType:
    """Look up the task type of a job's model."""
    return task_named(store.bundles.manifest(job.bundle).model.task)


def _figures(task: TaskType, score: Score) -> dict[str, float]:
    """Keep finite figures: an infinite perplexity cannot be drawn."""
    shares = {one.name: score.means[one.name] for one in task.scores if one.share and one.name in score.sums}
    return {name: value for name, value in (task.told(score) | shares).items() if math.isfinite(value)}


def on_devices(
    reports: Sequence[Report],
    bound: float,
    task: TaskType,
    unlearned: Collection[int] = (),
    *,
    robust: bool = False,
) -> dict[str, float]:
    """Average devices' evaluations on examples of their own, and count them; none weighs much more than the others.

    Args:
        reports: a round's, as they were taken.
        bound: the most that one may weigh, over the median weight.
        task: the type whose scores they report.
        unlearned: slots of reports whose global model had a task layer that nobody had trained: what it got right is
            chance, and is left out.
        robust: average by a robust rule, so that few malicious ones do not move the mean.
    """
    measured = {place: report for place, report in enumerate(reports) if report.held_back}
    if not measured:
        return {}
    known: dict[str, float] = {"evaluated": len(measured)}
    learned = [report for place, report in measured.items() if place not in unlearned]
    for whose, told in (("global", learned), ("personal", list(measured.values()))):
        figures = _figures(task, _mean(told, bound, task, whose, robust=robust)) if told else {}
        known |= {f"{name}_{whose}": value for name, value in figures.items()}
    return known


def unlearned_in(manifest: Manifest, bases: Sequence[int]) -> frozenset[int]:
    """Find the slots of updates that began with version 0, where that has a task layer which nobody has trained."""
    return frozenset(place for place, base in enumerate(bases) if base == 0) if manifest.head else frozenset()


def _mean(reports: Sequence[Report], bound: float, task: TaskType, whose: str, *, robust: bool) -> Score:
    """Average the scores of one prediction over the devices that reported them."""
    told = [(report.held_back, _sums(report, task, whose)) for report in reports]
    names = [score.name for score in task.scores]
    means: dict[str, float] = {}
    for name in names:
        own = [(held_back, sums[name]) for held_back, sums in told if name in sums]
        if own:
            held = [held_back for held_back, _ in own]
            means[name] = mean_claim([value / rows for rows, value in own], held, bound, robust=robust)
    return Score(1, means)


def _sums(report: Report, task: TaskType, whose: str) -> dict[str, float]:
    """Return a device's sums, each share bounded by the number of its predictions."""
    right, sums = (
        (report.right_global, report.sums_global)
        if whose == "global"
        else (report.right_personal, report.sums_personal)
    )
    limited = dict(sums)
    for score in task.scores:
        if score.share and score.name in sums:
            limited[score.name] = min(max(sums[score.name], 0.0), report.held_back)
    return limited | {task.counted: float(right)}


def runtime_for(store: Store, bundle: str) -> str:
    """Choose the runtime that evaluates a bundle: the settings', or the first of its own that is installed."""
    offered = store.bundles.manifest(bundle).runtimes
    wanted = store.settings.evaluation_runtime
    usable = [name for name in (available() if wanted else unasked()) if name in offered and wanted in ("", name)]
    if not usable:
        raise Refusal(
            422,
            "invalid",
            f"held-out examples need one of the runtimes {', '.join(offered)} on the server: {command_for(offered)}",
        )
    return usable[0]


def check_held_out(store: Store, bundle: str, held_out: str, *, answers: bool = False) -> dict[str, float]:
    """Refuse examples that no evaluation could read, when the job is made; return the scores of a guess on them.

    With `answers`, examples without a question are refused too, and a bundle that cannot write.

    The share `majority` is the accuracy of always guessing the most frequent class.
    """
    runtime_for(store, bundle)
    examples = _held_out(store, bundle, held_out)
    if answers:
        _require_answers(store, bundle, examples)
    if not task_named(store.bundles.manifest(bundle).model.task).has_classes:
        return {}
    return {"majority": max(Counter(example.label for example in examples).values()) / len(examples)}


def _require_answers(store: Store, bundle: str, examples: Examples) -> None:
    if store.bundles.manifest(bundle).generation is None:
        raise Refusal(
            422,
            "invalid",
            "evaluate_answers needs programs that generate text: export the bundle with --task causal-lm --generate "
            "512, or leave evaluate_answers at 0",
        )
    if not any(map(asked_by, examples)):
        raise Refusal(
            422,
            "invalid",
            "evaluate_answers needs held-out rows that ask something (messages, or prompt and completion), these "
            "have text alone: give such rows, or leave evaluate_answers at 0",
        )


def _held_out(store: Store, bundle: str, held_out: str) -> Examples:
    opened = store.bundles.open(bundle)
    model = opened.manifest.model
    source = json_source(store.blobs.whole(held_out))
    source.name = "the held-out examples"
    return examples_for(source, task_named(model.task).check(model.labels, Template.of(opened)))
