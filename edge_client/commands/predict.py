"""`spry predict`: classes, answers or next tokens by the weights that this device has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edge_client.client.predictions import predict
from edge_client.store.jobs import Store, default_home
from edge_client.tasks.task import Prediction


def command(
    texts: Annotated[list[str], typer.Argument(help="One text or several.")],
    context: Annotated[
        str | None, typer.Option(help="The second text of each pair; what questions are answered from.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Where `spry join` keeps everything.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Whose job; not needed by a device with one server.", envvar="SPRY_SERVER")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name or id; the job taken part in last when left out.")] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="By the adapter that this device trained last, not the global one.")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, help="Threads for the runtime; 0 leaves the number to it.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: each text's label and scores.")] = False,
) -> None:
    """Predict by the newest weights that this device has.

    Example: spry predict "Shares fell four percent." --personal
    """
    folder = home or default_home()
    store = Store(folder, server) if server else Store.only(folder)
    given = [text if context is None else (text, context) for text in texts]
    predictions = predict(store, given, job=job, personal=personal, threads=threads)
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
    return prediction.label if score is None else f"{prediction.label} {score:.2f}"
