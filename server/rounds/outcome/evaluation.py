"""Evaluate weights on held-out examples, by the bundle's own programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator as Yields
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edge_client.arrays import Weights
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
from edge_client.tasks.task import TaskType
from edge_client.training.epoch import evaluate as judged
from server.errors import Refusal
from server.jobs.job import Job
from server.storage.store import Store
from server.strategy.evaluations import figures_of

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
    encoder = TextEncoder(bundle.tokenizer(), manifest, training.batch, training.length)
    with (
        _held_out(store, job.bundle, job.settings.held_out) as examples,
        open_runtime(name, bundle.folder, threads=1) as runtime,
    ):
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
        figures = figures_of(task, one)
        told |= {f"{kind}{name}": figures[kind] for kind in ((task.main_score,) if name == HEAD_ALONE else figures)}
    return figures_of(task, score) | told | written


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
    with _held_out(store, bundle, held_out) as examples:
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


@contextmanager
def _held_out(store: Store, bundle: str, held_out: str) -> Yields[Examples]:
    opened = store.bundles.open(bundle)
    model = opened.manifest.model
    with store.blobs.lent(held_out) as file:
        source = json_source(file)
        source.name = "the held-out examples"
        yield examples_for(source, task_named(model.task).check(model.labels, Template.of(opened)))
