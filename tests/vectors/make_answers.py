"""Writes answers.json: messages of a server at the bounds of the protocol and beyond, and whether they are taken.

    python tests/vectors/make_answers.py

The bounds are those that `edge_client.wire.protocol` notes; what clients in other languages take is what this one does.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from annotated_types import Ge, Gt, Le, Len, Lt

from edge_client.wire.bounds import bounded
from edge_client.wire.protocol import CheckedIn, OpenJob, Receipt

PATH = Path(__file__).with_name("answers.json")
TASK = {
    "id": "t", "job": "j", "job_name": "topics", "round": 1, "seed": 5, "units": [0, 3], "cut": 2, "bundle": "b",
    "runtime": "executorch", "version": 0, "iteration": 0, "seconds": 60.0, "batch": 8, "evaluate": True, "clip": 1.5,
    "training": {"batch": 8, "length": 64, "head_learning_rate": 0.1}, "optimizers": {"units": {}, "head": {}},
    "sum": {"place": 1, "units": [0], "least": 3, "scores": ["loss"], "noise": 0.5},
}  # fmt: skip
ANSWERS: dict[type[Any], dict[str, Any]] = {
    CheckedIn: {"task": TASK, "wait": 3.0, "reason": "later"},
    Receipt: {"wait": 1.0, "repeated": False},
    OpenJob: {"job": "j", "job_name": "topics", "task": "seq-cls", "labels": ["a", "b"]},
}
LONGEST = 2000


def vectors() -> dict[str, Any]:
    """For each message its right form, and each of its fields at and beyond its bounds: where, what, and if taken."""
    cases = [
        [kind.__name__, where, value, is_taken(changed(answer, where, value), kind)]
        for kind, answer in ANSWERS.items()
        for where, value in [([], {}), *spoiled(answer, kind)]
    ]
    return {"answers": {kind.__name__: answer for kind, answer in ANSWERS.items()}, "cases": cases}


def changed(answer: dict[str, Any], where: list[str], value: Any) -> dict[str, Any]:
    """A message with one of its fields replaced; `{"long": n}` stands for a text of so many letters."""
    if not where:
        return answer
    if len(where) > 1:
        return answer | {where[0]: changed(answer.get(where[0], {}), where[1:], value)}
    return answer | {where[0]: "x" * value["long"] if isinstance(value, dict) else value}


def is_taken(answer: dict[str, Any], kind: type[Any]) -> bool:
    try:
        bounded(msgspec.json.decode(json.dumps(answer), type=kind), kind)
    except ValueError:
        return False
    return True


def spoiled(value: Any, kind: Any) -> Iterator[tuple[list[str], Any]]:
    """Return where in a message one of its parts is put at a bound, beyond it, or has another type."""
    inner, notes = _bare(kind)
    if is_dataclass(inner) and isinstance(inner, type):
        hints = get_type_hints(inner, include_extras=True)
        for field in fields(inner):
            for where, one in spoiled(value.get(field.name, {}), hints[field.name]):
                yield [field.name, *where], one
    elif get_origin(inner) is list:
        yield from (([], [one]) for _, one in spoiled(None, get_args(inner)[0]) if not isinstance(one, dict))
        yield [], "none"
    elif get_origin(inner) is not Literal:
        yield from (([], one) for one in _of_plain(inner, notes))


def _bare(kind: Any) -> tuple[Any, list[Any]]:
    notes: list[Any] = []
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            notes += more
        else:
            kind = next(one for one in get_args(kind) if one is not types.NoneType)
    return kind, notes


def _of_plain(kind: type[Any], notes: list[Any]) -> Iterator[Any]:
    yield {str: 5, bool: "true"}.get(kind, "5")
    if kind is str:
        most = next((note.max_length for note in notes if isinstance(note, Len)), LONGEST)
        yield from ("", {"long": most}, {"long": most + 1})
    elif kind is float:
        yield from (0, 1, 0.25, -0.25, 1e29, 1e31, -1e31)
    elif kind is int:
        yield from (0, 1, -1)
    if kind in (int, float):
        for note in notes:
            yield from _around(note, 1 if kind is int else 0.001)


def _around(note: Any, step: float) -> Iterator[Any]:
    """A bound and its neighbours, in as many bits as every reader of JSON keeps of a whole number."""
    bound = next(getattr(note, name) for kind, name in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (Lt, "lt"))
                 if isinstance(note, kind))  # fmt: skip
    yield from (one for one in (bound - step, bound, bound + step) if abs(one) < 2**53)


if __name__ == "__main__":
    answers, lines = json.dumps(vectors()["answers"]), ",\n".join(map(json.dumps, vectors()["cases"]))
    PATH.write_text(f'{{"answers": {answers},\n"cases": [\n{lines}\n]}}\n')
