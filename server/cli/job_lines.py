"""Format a job for `spry job` and `spry up`, in lines and in rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_BESIDE = "exact_match", "perplexity"
"""Scores that some tasks have beside the one that is compared."""
_PERSONAL = "_personal"
"""The suffix of the scores of devices' own models."""


def job_line(job: dict[str, Any]) -> str:
    """Format a job's state, its open round and its newest scores."""
    progress = job["progress"]
    stuck = f" ({job['reason']}; when that is mended: spry job resume)" if job["state"] == "set-aside" else ""
    parts = [f"{job['name']}: {job['state']}{stuck}, {job['done']} of {job['settings']['rounds']} rounds"]
    if progress and progress["state"] in ("open", "closing"):
        training = job["settings"]["training"]
        of = f"{progress['iteration'] + 1} of {max(training['iterations'], 1)}"
        step = f", iteration {of}" if training["mode"] == "iteration" else ""
        parts.append(f"round {progress['number']}{step}: {progress['reported']} of {progress['wanted']} reported")
    if "loss" in job["metrics"]:
        parts.append(f"loss {job['metrics']['loss']:.4f}")
    scores = {name: shown(job, name) for name in scores_of(job)}
    parts += [f"{name.replace('_', ' ')} {shown}" for name, shown in scores.items() if shown]
    return "; ".join(parts)


def to_beat(job: Mapping[str, Any]) -> list[str]:
    """Tell what else was measured on the held-out examples: a guess, and the task layer by itself."""
    known = job["metrics"]
    told = {
        "always the most frequent class": known.get("majority"),
        "the task layer without the units": known.get(f"{job['score']}_head"),
        "perplexity before the first round": known.get("perplexity_before"),
    }
    scores = "; ".join(f"{what} {score:.4f}" for what, score in told.items() if score is not None)
    return [f"on the same held-out examples: {scores}"] if scores else []


def privacy_of(job: Mapping[str, Any]) -> list[str]:
    """Tell what a private job costs a device, and what its devices keep to themselves."""
    if not (told := job["privacy"]):
        return []
    most = f"{told['planned']:.2f} for a device in {told['times']} round{'' if told['times'] == 1 else 's'}, the most"
    with_ = f"delta {told['delta']:g}, noise {told['noise']:.3g} clips"
    silent = "  devices tell no losses, accuracies, features or numbers of examples, which no budget pays for"
    return [f"privacy: epsilon {told['epsilon']:.2f} so far, {most} that there may be ({with_})", silent]


def outliers_in(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Devices whose updates were far from the others' in the newest rounds, those first that were most often."""
    outlying: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for row in rounds:
        for one in (row["result"] or {}).get("outlying", []):
            outlying.setdefault(one["device"], []).append((row["number"], one))
    lines = [f"outliers in the newest {len(rounds)} rounds, averaged where they cannot move the mean far:"]
    for device, times in sorted(outlying.items(), key=lambda item: -len(item[1])):
        number, newest = times[0]
        lines.append(f"  {device} ({newest['name']}) in {len(times)}; in round {number} {newest['why']}")
    return lines if outlying else []


def began_in(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Say which versions the newest round's updates began with, where rounds take late ones; the newest is first."""
    return [f"updates began, in round {row['number']}: {row['began']}" for row in rounds if row["began"]][:1]


def steps_in(assignment: dict[str, Any]) -> str:
    """Count the devices that take each step, in words."""
    steps = Counter(one["step"] for one in assignment["parts"] if one["state"] in ("open", "accepted"))
    told = (f"{count} device{'' if count == 1 else 's'} {step}" for step, count in steps.most_common())
    return f"gradients in round {assignment['round']}: {'; '.join(told) or 'of no device yet'}"


def scores_of(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the scores that a job's task may have, the one that is compared first."""
    return job["score"], f"{job['score']}{_PERSONAL}", *_BESIDE


def value_of(metrics: dict[str, Any], name: str) -> float | None:
    """Return a score by held-out examples, or as devices measured it."""
    return metrics.get(name, metrics.get(f"{name}_global"))


def shown(job: dict[str, Any], name: str) -> str:
    """Format a score's newest value; empty where there is none."""
    known = value_of(job["metrics"], name)
    return "" if known is None else f"{known:.4f}"


def row_of(row: dict[str, Any], scores: Sequence[str]) -> tuple[object, ...]:
    """Format a round as a row of a table with these scores."""
    result = row["result"] or {}
    known = [value_of(result, name) for name in scores]
    return (
        row["number"],
        row["state"] if "reason" not in result else f"{row['state']}: {result['reason']}",
        result.get("reports", row["tasks"].get("accepted", 0)),
        f"{result['loss']:.4f}" if "loss" in result else "",
        *("" if value is None else f"{value:.4f}" for value in known),
        f"{result['seconds']:.1f}" if "seconds" in result else "",
    )
