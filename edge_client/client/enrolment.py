"""Enrol a device with a server: by a token once, by the device's own key from then on."""

from __future__ import annotations

from edge_client import __version__
from edge_client.errors import ServerError, SpryError, Unauthorized, Unreachable
from edge_client.events import Event, Tell
from edge_client.keys import installed
from edge_client.store.jobs import DeviceStore, signing
from edge_client.wire.proofs import device_key, enrolment
from edge_client.wire.protocol import Enrolled
from edge_client.wire.server import Server


def enrol(server: Server, store: DeviceStore, token: str | None, name: str, tell: Tell) -> None:
    """Have the server's requests be this device's, which enrols if it has not.

    Args:
        server: where to; it is given the identity and the key.
        store: keeps them.
        token: to enrol with; not needed by a device that has.
        name: what the server shows for this device.
        tell: takes the event.
    """
    identity = store.identity()
    if identity is None:
        identity = _enrolled(server, store, token, name, tell)
    elif identity.secret and installed():
        identity = _with_key(server, store, identity)
    _identify(server, store, identity)


def _identify(server: Server, store: DeviceStore, identity: Enrolled) -> None:
    server.identity = identity
    if not identity.secret:
        server.signing = signing(store, identity, server.url)


def _enrolled(server: Server, store: DeviceStore, token: str | None, name: str, tell: Tell) -> Enrolled:
    if not token:
        what = f"this device is not enrolled with {server.url}"
        raise SpryError(f"{what}: give a token (--token), made by the server's operator with `spry token create`")
    key = store.make_key() if installed() else ""
    identity = server.enrol(enrolment(token, name[:100], __version__, key))
    if identity.secret:
        why = "no package cryptography here" if not key else "the server is of an earlier version"
        tell(Event("warning", f"this device authenticates by a secret, not a key: {why}"))
    store.save_identity(identity)
    tell(Event("enrolled", f"enrolled as {identity.device}", {"device": identity.device}))
    return identity


def _with_key(server: Server, store: DeviceStore, identity: Enrolled) -> Enrolled:
    """Send a key in place of the secret of an earlier version; a server of an earlier version goes on by the secret."""
    key = device_key(identity.device, store.make_key())
    _identify(server, store, identity)
    try:
        changed = server.send_key(key)
    except Unauthorized:  # the server may have the key already, and its answer was lost
        _identify(server, store, Enrolled(identity.device, ""))
        changed = server.send_key(key)
    except Unreachable:
        raise
    except ServerError:
        return identity
    store.save_identity(changed)
    return changed
