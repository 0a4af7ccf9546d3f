"""An invitation: where a device enrols, and with what, in one line that a QR code can carry.

    spry://join?server=https%3A%2F%2Fspry.example%3A8000&token=TOKEN&key=KEY

``server`` is the address by which devices reach it, ``token`` an enrolment token, and ``key``, which may be left out,
the public key of the only publisher whose bundles are taken. Names that a reader does not know are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from edge_client.errors import SpryError
from edge_client.keys import split_token

_BEGINNING = "spry://join"
_LONGEST = 1000


@dataclass(frozen=True)
class Invitation:
    """The server, token and publisher that a device needs to take part."""

    server: str
    token: str
    """The token, with the publisher's key after a point, where there is one."""

    def __str__(self) -> str:
        token, key = split_token(self.token)
        said = {"server": self.server, "token": token or "", "key": key or ""}
        return f"{_BEGINNING}?{urlencode({name: value for name, value in said.items() if value})}"


def invitation_in(text: str) -> Invitation:
    """Return the invitation in a line that `str` wrote."""
    beginning, _, query = text.strip().partition("?")
    is_one = beginning.rstrip("/") == _BEGINNING and len(text) <= _LONGEST
    said = parse_qs(query) if is_one else {}
    fields = {name: said[name][0] for name in ("server", "token", "key") if name in said}
    if not fields.keys() >= {"server", "token"}:
        raise SpryError(
            f"{text[:60]!r} is no invitation: expected {_BEGINNING}?server=…&token=…; copy it whole, in quotes"
        )
    token = fields["token"] + (f".{fields['key']}" if "key" in fields else "")
    split_token(token)
    return Invitation(fields["server"], token)
