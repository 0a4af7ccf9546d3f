"""Options that `spry simulate` and `spry bench estimate` share: what is simulated, and where it is computed."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_client.bundle.manifest import TASKS

Model = Annotated[str, typer.Option(help="What is trained, as `spry export` takes it.")]
Data = Annotated[str, typer.Option(help="A folder with train and test as JSONL or CSV, or a dataset on the hub.")]
TaskOption = Annotated[str, typer.Option(help=f"What the model learns: {', '.join(TASKS)}.")]
Clients = Annotated[int, typer.Option(min=1, help="Virtual clients.")]
Alpha = Annotated[
    float | None, typer.Option(help="Of the Dirichlet split: the smaller, the less alike; 1 when left out.")
]
By = Annotated[
    str, typer.Option(help="The column that is split over; without --alpha, each of its values is a client.")
]
Text = Annotated[str, typer.Option(help="The column of the text; found by its name when left out.")]
Pair = Annotated[str, typer.Option(help="The column of the second text.")]
Label = Annotated[str, typer.Option(help="The column of the label.")]
BadRowsOption = Annotated[str, typer.Option(help="Rows that cannot be used: refuse, or skip.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the split, the sampling and all directions.")]
Rank = Annotated[int, typer.Option(min=1, help="Rank of LoRA, or of frozen factors.")]
LoraAlpha = Annotated[float, typer.Option(help="LoRA's scale.")]
Dimension = Annotated[int, typer.Option(min=0, help="Trainable numbers per layer of pairs and TinyLoRA; 0: 64 and 16.")]
TargetModules = Annotated[str, typer.Option(help="Layers to adapt, between commas.")]
DeskExamples = Annotated[
    str, typer.Option("--examples", help="A file of labelled examples at hand, for a better start.")
]
LastBlocks = Annotated[int, typer.Option(min=0, help="Adapt so many of the last blocks; 0: all.")]
Device = Annotated[str, typer.Option(help="cpu, or a CUDA device.")]
ArithmeticOption = Annotated[str, typer.Option(help="float32, or bfloat16: faster, less exact.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="A config.json's shape with random weights.")]
