"""The accuracy of weights on held-out examples, by the bundle's own programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edge_client.arrays import Weights
from edge_client.data.batches import Batch
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import examples_for
from edge_client.data.sources import JsonlSource
from edge_client.runtimes.runtime import available, command_for, open_runtime, unasked
from edge_client.step.stepper import Stepper
from edge_client.tasks.registry import task_named
from edge_client.training.epoch import evaluate as count_right
from edge_client.wire.protocol import Report
from server.errors import Refusal
from server.jobs.job import Job
from server.rounds.aggregation import bounded
from server.storage.store import Store

if TYPE_CHECKING:
    from edge_client.data.examples import Examples


def evaluate(store: Store, job: Job, weights: Weights) -> dict[str, float]:
    """The share of right predictions, where the job has held-out examples."""
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

        total, (right,) = count_right(logits, examples, encoder, task_named(manifest.model.task), [weights])
    return {"accuracy": right / total}


def accuracies(reports: Sequence[Report], bound: float) -> dict[str, float]:
    """What devices measured on examples of their own, and how many did; none weighs much more than the others."""
    if not reports:
        return {}
    weights = bounded([report.held_back for report in reports], bound)
    scales = [weight / report.held_back for report, weight in zip(reports, weights, strict=True)]
    right = {
        "accuracy_global": sum(report.right_global * scale for report, scale in zip(reports, scales, strict=True)),
        "accuracy_personal": sum(report.right_personal * scale for report, scale in zip(reports, scales, strict=True)),
    }
    return {name: hits / sum(weights) for name, hits in right.items()} | {"evaluated": len(reports)}


def runtime_for(store: Store, bundle: str) -> str:
    """What evaluates a bundle here: the settings' choice, or the first of its runtimes that is installed."""
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


def check_held_out(store: Store, bundle: str, held_out: str) -> None:
    """Refuse examples that no evaluation could read, when the job is made."""
    runtime_for(store, bundle)
    _held_out(store, bundle, held_out)


def _held_out(store: Store, bundle: str, held_out: str) -> Examples:
    model = store.bundles.manifest(bundle).model
    source = JsonlSource(store.blobs.whole(held_out))
    source.name = "the held-out examples"
    return examples_for(source, task_named(model.task).check(model.labels))
