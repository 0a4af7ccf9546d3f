"""A simulation from its plan to its results."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from edge_client.tasks.registry import task_named
from edge_client.tasks.task import TaskType
from server.jobs.completion import complete
from server.privacy.budget import settled_by_chance
from server.simulation.compare import convergence
from server.simulation.compare.curves import write_curves
from server.simulation.compare.scores import PERSONAL, SCORES
from server.simulation.compute.crews import Engine, open_crew
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan
from server.simulation.run.fleet import Fleet
from server.simulation.run.folder import RunFolder
from server.simulation.run.state import RunState
from server.strategy.state import ServerState

TRAFFIC = ("bytes_up", "bytes_down", "numbers_up", "numbers_down", "numbers_down_own")
Tell = Callable[[Mapping[str, Any]], None]
"""Hears each round's line, those of earlier runs first."""


def simulate(
    plan: Plan, out: Path, tell: Tell, *, workers: int = 1, engine: Engine = "local", costs: Path | None = None
) -> dict[str, Any]:
    """Run or resume the simulation in `out`; return its summary. The bundle `costs` has a device's memory."""
    folder = RunFolder(out)
    with folder.taken():
        worker = Worker(plan)
        state = folder.begin(_config(plan, worker)) or RunState(ServerState(0, worker.learner.initial))
        for line in folder.lines() if state.round else []:
            tell(line)
        if state.round == plan.settings.rounds and (summary := folder.finished()):
            return summary
        folder.reopen()
        with open_crew(plan, worker, workers, engine) as crew:
            fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), crew, costs)
            while fleet.may_go_on(state):
                state, line = fleet.play(state)
                folder.save(state, line)
                tell(line)
        summary = _summary(folder.lines(), task_named(plan.task))
        worker.learner.save_adapter(folder.adapter, state.model.result)
        write_curves(folder.path)
        folder.finish(summary)
        return summary


def _config(plan: Plan, worker: Worker) -> dict[str, Any]:
    """Return the plan, and its results for this model and data."""
    manifest, population, dumped = worker.manifest, worker.population, plan.model_dump(mode="json")
    return {
        **dumped,
        "settings": settled_by_chance(complete(plan.settings, manifest), population.clients).model_dump(mode="json"),
        "adapter": {**dumped["adapter"], "examples": Path(plan.adapter.examples).name},
        "data": {
            "name": Path(plan.data).name,
            "classes": len(population.labels),
            "examples": population.examples,
            "test": len(worker.tested),
            "largest_class": round(population.largest_class(), 4),
            "fingerprint": population.fingerprint,
            "at_the_desk": _digest(plan.adapter.examples),
        },
        "clients": population.clients,
        "per_round": plan.settings.per_round,
        "rounds": plan.settings.rounds,
        "numbers": {
            "units": len(manifest.units),
            "unit_weights": sum(unit.size for unit in manifest.units),
            "head_weights": manifest.head_size,
        },
    }


def _digest(file: str) -> str:
    """Hash the labelled examples that decided the adapter; nothing where there are none."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:32] if file else ""


def _summary(lines: Sequence[Mapping[str, Any]], task: TaskType) -> dict[str, Any]:
    """Summarize a run."""
    rounds = pd.DataFrame(lines).set_index("round")
    scores = {name: rounds[name].dropna() if name in rounds else pd.Series(dtype=float) for name in SCORES}
    points, seconds = scores[task.main_score], rounds["seconds"]
    until = convergence.seconds_to_share(points, seconds)
    return {
        **{score.name: convergence.last(scores[score.name]) for score in task.scores},
        "best": convergence.best(points),
        "fall": convergence.fall(points),
        PERSONAL: convergence.last(scores[PERSONAL]),
        **({"epsilon": lines[-1]["epsilon"]} if "epsilon" in lines[-1] else {}),
        "converged_round": convergence.converged_round(points),
        "rounds_to_95": convergence.round_of_share(points),
        "seconds_to_95": None if until is None else round(until, 1),
        "seconds": round(float(seconds.sum()), 1),
        **{name: int(rounds[name].sum()) for name in TRAFFIC},
        "peak_bytes": max((line["peak_bytes"] for line in lines if "peak_bytes" in line), default=None),
        "simulator_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
