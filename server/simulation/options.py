"""Options that `spry simulate` and `spry bench estimate` share: what is simulated, and where it is computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import typer

from edge_client.bundle.manifest import DEFAULT_TASK, TASKS
from edge_client.commands.options.adapter import ADAPTER_NAMES, AdapterOptions
from edge_client.commands.options.groups import OptionGroup

FLEETS_NAMES = {"alpha": "--lora-alpha"}
"""The names of an adapter's options, where the split's own are beside them."""


@dataclass(frozen=True)
class SourceOptions(OptionGroup):
    """Options for the model and its data."""

    title = "Model and data"

    model: Annotated[str, typer.Option(help="The model, as `spry export` takes it.")]
    data: Annotated[str, typer.Option(help="A folder with train and test as JSONL or CSV, or a dataset on the hub.")]
    task: Annotated[str, typer.Option(help=f"The model's task: {', '.join(TASKS)}.")] = DEFAULT_TASK
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="A config.json's shape with random weights.")
    ] = False
    text: Annotated[str, typer.Option(help="The column of the text; by default found by its name.")] = ""
    pair: Annotated[str, typer.Option(help="The column of the second text.")] = ""
    label: Annotated[str, typer.Option(help="The column of the label.")] = ""
    bad_rows: Annotated[str, typer.Option(help="If a row cannot be used: refuse the data, or skip the row.")] = "refuse"

    def asked(self) -> dict[str, Any]:
        """Return the given options by the names of a plan."""
        options = asdict(self)
        return {"columns": {name: options.pop(name) for name in ("text", "pair", "label")}, **options}


@dataclass(frozen=True)
class FleetOptions(OptionGroup):
    """Options for the clients, and how the data are split among them."""

    title = "Clients"

    clients: Annotated[
        int | None, typer.Option(min=1, help="Virtual clients; by default 100, with --preset paper the paper's number.")
    ] = None
    alpha: Annotated[
        float | None, typer.Option(help="The parameter of the Dirichlet split: smaller means less alike; by default 1.")
    ] = None
    by: Annotated[
        str, typer.Option(help="The column to split by; without --alpha, each of its values is a client.")
    ] = ""
    seed: Annotated[int, typer.Option(min=0, help="The seed of the split, the sampling and all directions.")] = 0

    def asked(self) -> dict[str, Any]:
        """Return the given options by the names of a plan."""
        alpha = self.alpha if self.alpha is not None or self.by else 1.0
        named = {name: value for name, value in (("clients", self.clients), ("by", self.by)) if value}
        return {"alpha": alpha, "seed": self.seed, **named}


@dataclass(frozen=True)
class FleetAdapterOptions(AdapterOptions):
    """Options for a fleet's adapter as they were given: the plan chooses what nobody names."""

    method: Annotated[
        str,
        typer.Option("--peft", help=f"The adapter: {ADAPTER_NAMES}. By default lora; bottleneck to go forward only."),
    ] = ""

    def __post_init__(self) -> None:
        """Leave what is not given open."""

    def asked(self) -> dict[str, Any]:
        """Return the given options by the names of a plan's adapter."""
        return {one.name: given for one in fields(self) if (given := getattr(self, one.name)) != one.default}


@dataclass(frozen=True)
class ComputeOptions(OptionGroup):
    """Options for the device that a model runs on."""

    title = "Computing"

    device: Annotated[str, typer.Option(help="cpu, or a CUDA device.")] = "cpu"
    arithmetic: Annotated[str, typer.Option(help="float32, or bfloat16: faster, less exact.")] = "float32"
