"""Mirrors of bundles that a server or a job names, as its tasks list them for devices."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from edge_client.errors import SpryError
from edge_client.wire.addresses import mirrors_in
from edge_client.wire.protocol import LONGEST_MIRROR, MOST_MIRRORS


def _in_commas(named: Any) -> Any:
    return ",".join(map(str, named)) if isinstance(named, list | tuple) else named


def _checked(named: str) -> str:
    try:
        found = mirrors_in(named)
    except SpryError as error:
        raise ValueError(str(error)) from None
    if len(found) > MOST_MIRRORS or any(len(one) > LONGEST_MIRROR for one in found):
        raise ValueError(f"at most {MOST_MIRRORS} addresses of {LONGEST_MIRROR} characters can be told to devices")
    return ",".join(found)


Addresses = Annotated[str, BeforeValidator(_in_commas), AfterValidator(_checked)]
"""Addresses of mirrors with commas between them, or a list of them."""
