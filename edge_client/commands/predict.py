"""`spry predict`: classes, answers or next tokens by the weights that this device has."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from edge_client.client.predictions import predict
from edge_client.commands.options.groups import grouped
from edge_client.commands.options.kept import KeptOptions
from edge_client.format import shown
from edge_client.tasks.task import Prediction


@grouped
def command(
    texts: Annotated[list[str], typer.Argument(help="One text or several.")],
    kept: KeptOptions,
    context: Annotated[
        str | None, typer.Option(help="The second text of each pair; for questions, the text with the answer.")
    ] = None,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Hold one program at a time, which takes longer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: each text's label and scores.")] = False,
) -> None:
    """Predict with this device's newest weights.

    Example: spry predict "Shares fell four percent." --personal
    """
    given = [text if context is None else (text, context) for text in texts]
    predictions = predict(
        kept.store, given, job=kept.job, personal=kept.personal, threads=kept.threads, low_memory=low_memory
    )
    if as_json:
        rows = [
            {"text": text, "label": one.label, "scores": one.scores}
            for text, one in zip(texts, predictions, strict=True)
        ]
        typer.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
        return
    for text, prediction in zip(texts, predictions, strict=True):
        typer.echo(f"{_shown(prediction)}\t{text}")


def _shown(prediction: Prediction) -> str:
    if prediction.label is None:
        return "(no answer)"
    score = prediction.scores.get(prediction.label)
    label = shown(prediction.label)
    return label if score is None else f"{label} {score:.2f}"
