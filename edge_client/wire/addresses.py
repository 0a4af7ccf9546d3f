"""Addresses of servers, and who may vouch for them."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from pathlib import Path

import httpx

from edge_client.errors import SpryError


def checked_address(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SpryError(f"{url!r} is no address ({error}); give one such as https://spry.example.org") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SpryError(f"{url!r} is no address of a server; give one such as https://spry.example.org")
    return str(parsed).rstrip("/")


def checked_mirror(url: str) -> str:
    """Take the address of a mirror: bundles stand below it, so it has no query, and nobody logs in there."""
    checked = checked_address(url)
    parsed = httpx.URL(checked)
    if parsed.query or parsed.fragment or parsed.userinfo:
        raise SpryError(f"{url!r} is no address of a mirror; give one such as https://cdn.example.org/bundles")
    return checked


def mirrors_in(text: str) -> list[str]:
    """Take the addresses of mirrors from a list with commas."""
    return [checked_mirror(one.strip()) for one in text.split(",") if one.strip()]


def travels_open(url: str) -> bool:
    """Tell whether others on the network can read what is sent."""
    parsed = httpx.URL(url)
    if parsed.scheme == "https" or parsed.host == "localhost":
        return False
    try:
        return not ip_address(parsed.host).is_loopback
    except ValueError:
        return True


def trusted(url: str, ca: Path | None) -> ssl.SSLContext:
    """Open the certificate authorities that may vouch for a server: those in a file, or the system's.

    For plain http nobody: to read the system's takes some 20 ms and megabytes.
    """
    if ca is None and not url.startswith("https"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise SpryError(f"{ca} cannot be read as certificates ({error}); give a PEM file") from None
