"""Invitations as pictures: what the camera of a phone or of a board reads."""

from __future__ import annotations

import io

import segno

from edge_client.errors import SpryError
from edge_client.keys import KEY_BYTES, decoded
from edge_client.wire.addresses import checked_address
from edge_client.wire.invitation import Invitation
from server.errors import Refusal

_BORDER = 4
"""Modules of white around it, which cameras need."""


def check_address(server: str, key: str) -> None:
    """Refuse what no device could enrol at, before a token is made."""
    if key and decoded(key, KEY_BYTES) is None:
        raise Refusal(422, "invalid", "the publisher's key is invalid: expected the 43 characters of `spry keys show`")
    try:
        if server:
            checked_address(server)
    except SpryError as error:
        raise Refusal(422, "invalid", str(error)) from None


def invite(server: str, token: str, key: str) -> Invitation:
    return Invitation(checked_address(server), f"{token}.{key}" if key else token)


def as_svg(invitation: Invitation) -> str:
    """Black on white, whatever colours a page has."""
    picture = io.BytesIO()
    _code(invitation).save(picture, kind="svg", border=_BORDER, light="#fff", omitsize=True, xmldecl=False, nl=False)
    return picture.getvalue().decode()


def as_lines(invitation: Invitation) -> str:
    """Draw an invitation's code for terminals."""
    lines = io.StringIO()
    _code(invitation).terminal(lines, compact=True, border=_BORDER)
    return lines.getvalue()


def _code(invitation: Invitation) -> segno.QRCode:
    return segno.make_qr(str(invitation), error="m")
