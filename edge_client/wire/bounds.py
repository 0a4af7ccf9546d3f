"""Hold a server's messages to the bounds that the protocol notes beside its fields.

What has no bound of its own has those below. Texts have no controls afterwards, wherever they are shown or kept.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Len, Lt

from edge_client.format import shown

_CHARACTERS = 2000
_ELEMENTS = 65_536
_WHOLE = 2**63
_REAL = 1e30


def bounded(value: Any, kind: Any, where: str = "it") -> Any:
    """Return a decoded message, its texts without controls; raise ValueError if it is larger than it may be."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *bounds = get_args(kind)
        value = bounded(value, inner, where)
        for bound in bounds:
            _check(value, bound, where)
        return value
    if origin in (Union, UnionType):
        (inner,) = (one for one in get_args(kind) if one is not NoneType)
        return None if value is None else bounded(value, inner, where)
    if is_dataclass(value):
        hints = _hints(type(value))
        told = {name: bounded(getattr(value, name), hint, name) for name, hint in hints.items()}
        return cast("Any", type(value))(**told)
    if isinstance(value, list):
        (inner,) = get_args(kind)
        _require(len(cast("list[Any]", value)) <= _ELEMENTS, where, f"has more than {_ELEMENTS} elements")
        return [bounded(one, inner, where) for one in cast("list[Any]", value)]
    return _plain(value, where)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, str):
        _require(len(value) <= _CHARACTERS, where, f"has more than {_CHARACTERS} characters")
        return shown(value)
    if isinstance(value, int):
        _require(-_WHOLE <= value < 2 * _WHOLE, where, "has more than 64 bits")
    elif isinstance(value, float):
        _require(-_REAL <= value <= _REAL, where, f"is {value:g}")
    return value


def _check(value: Any, bound: Any, where: str) -> None:
    """Check one note of the protocol."""
    if isinstance(bound, Len):
        most = bound.max_length
        _require(len(value) >= bound.min_length, where, f"is shorter than {bound.min_length}")
        _require(most is None or len(value) <= most, where, f"is longer than {most}")
    elif isinstance(bound, Ge):
        _require(value >= cast("Any", bound.ge), where, f"is less than {bound.ge}")
    elif isinstance(bound, Gt):
        _require(value > cast("Any", bound.gt), where, f"is not more than {bound.gt}")
    elif isinstance(bound, Le):
        _require(value <= cast("Any", bound.le), where, f"is more than {bound.le}")
    elif isinstance(bound, Lt):
        _require(value < cast("Any", bound.lt), where, f"is not less than {bound.lt}")


def _require(holds: bool, where: str, why: str) -> None:
    if not holds:
        raise ValueError(f"{where} {why}")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a message's fields, with their bounds."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}
