"""Find the address of a request: the connection's other end, or what a trusted proxy reports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

PEER = "spry.peer"
"""The key in a connection's state of the address at its other end, whatever headers say."""
_FORWARDED = b"x-forwarded-for"
_LONGEST = 100
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrueClient:
    """Puts into each request whose it is, before anything limits or logs by it.

    A server of ASGI may have believed a header by then (uvicorn does, of its own machine), so that what the connection
    itself knows goes before what stands in the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            peer = scope.get("state", {}).get(PEER) or scope.get("client")
            if peer:
                trusted: str = scope["app"].state.services.store.settings.trusted_proxies
                host = client_of(peer[0], scope["headers"], networks(trusted))
                scope["client"] = (host, peer[1] if host == peer[0] else 0)
        await self._app(scope, receive, send)


@lru_cache(maxsize=8)
def networks(named: str) -> tuple[Network, ...]:
    """Parse the addresses and networks of a list with commas; raise ValueError where one is none."""
    return tuple(ipaddress.ip_network(name.strip(), strict=False) for name in named.split(",") if name.strip())


def client_of(peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: tuple[Network, ...]) -> str:
    """Return the nearest of all who passed a request on that is no trusted proxy.

    Each proxy adds its client on the right; everything left of the first that is not trusted may be invented.
    """
    if not is_within(peer, trusted):
        return peer[:_LONGEST]
    said = b",".join(value for name, value in headers if name == _FORWARDED).decode("latin-1")
    nearest = peer
    for hop in reversed(said.split(",")):
        known = _address(hop)
        if known is None:
            break
        nearest = str(known)
        if not is_within(nearest, trusted):
            break
    return nearest


def is_within(host: str, trusted: tuple[Network, ...]) -> bool:
    """Tell whether an address is one of these, or in one of these networks."""
    known = _address(host) if trusted else None
    return known is not None and any(known in network for network in trusted)


def _address(text: str) -> Any:
    """Parse an address as proxies write it, with its port or without."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        known = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(known, "ipv4_mapped", None) or known
