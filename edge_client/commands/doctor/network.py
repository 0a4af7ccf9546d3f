"""Check the way from this device to a server for `spry doctor`: answer, clock, certificate, enrolment."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from edge_client.store.jobs import DeviceStore, default_home, signing
from edge_client.wire.addresses import checked_address, travels_open, trusted
from edge_client.wire.protocol import VERSION, Enrolled

from .machine import Finding, Scope

_SECONDS = 10.0
_LARGEST_SKEW = 30.0
_DAY = 86_400.0
FEW_DAYS = 14
_NO_BUNDLE = "0" * 64
"""Asked for to learn whether the server knows the device: nothing changes by it."""


def server(asked: Scope) -> Iterator[Finding]:
    """Check a server as this device sees it; yield nothing where none is named."""
    if asked.server is None:
        return
    url = checked_address(asked.server)
    with httpx.Client(verify=trusted(url, asked.ca), timeout=_SECONDS) as client:
        before = time.time()
        try:
            with client.stream("GET", f"{url}/healthz") as response:
                certificate = _certificate(response)
                body = response.read()
        except httpx.TransportError as error:
            yield _silent(url, error)
            return
        now = (before + time.time()) / 2
        yield _answer(url, response, body, time.time() - before)
        if finding := _clock(response, now):
            yield finding
        if certificate:
            yield expiry("certificate", certificate, now)
        elif travels_open(url):
            risk = "plain http: the device's secret can be read on the way"
            yield Finding("certificate", "warning", risk, "use https (docs/server.md)")
        yield _enrolment(client, asked, url)


def expiry(name: str, certificate: Mapping[str, Any], now: float) -> Finding:
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - now) / _DAY
    validity = f"valid for {days:.0f} days, until {certificate['notAfter']}"
    if days < FEW_DAYS:
        return Finding(name, "warning", validity, "renew the server's certificate, and start the server again with it")
    return Finding(name, "ok", validity)


def _certificate(response: httpx.Response) -> Mapping[str, Any]:
    stream = response.extensions["network_stream"]
    tls = stream.get_extra_info("ssl_object")
    return tls.getpeercert() if tls else {}


def _silent(url: str, error: httpx.TransportError) -> Finding:
    reason = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" not in reason:
        advice = f"see whether the server runs and whether a firewall lets you through: curl -v {url}/healthz"
        return Finding("server", "problem", f"{url} gives no answer ({reason})", advice)
    distrust = f"{url} shows a certificate that is not trusted here ({reason})"
    if "not yet valid" in reason or "expired" in reason:
        advice = "set this device's clock (timedatectl set-ntp true); if it is right, renew the server's certificate"
    else:
        advice = "give the file of the authority that signed it with --ca; the address must be one that it names"
    return Finding("server", "problem", distrust, advice)


def _answer(url: str, response: httpx.Response, body: bytes, seconds: float) -> Finding:
    if response.status_code == HTTPStatus.OK and body == b"ok\n":
        return Finding("server", "ok", f"{url} answers in {seconds * 1000:.0f} ms")
    answer = f"{url} answers {response.status_code}, not as a spry server in health does"
    return Finding("server", "problem", answer, "check --server; if it is right, read the server's log")


def _clock(response: httpx.Response, now: float) -> Finding | None:
    try:
        skew = now - parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None
    if abs(skew) <= _LARGEST_SKEW:
        return Finding("clock", "ok", "agrees with the server's")
    difference = f"{abs(skew):,.0f} seconds {'ahead of' if skew > 0 else 'behind'} the server's"
    return Finding("clock", "warning", difference, "set it: timedatectl set-ntp true (on the one that is wrong)")


def _enrolment(client: httpx.Client, asked: Scope, url: str) -> Finding:
    store = DeviceStore(asked.home or default_home(), url)
    file = store.folder / "identity.json"
    enrol = f"run: spry join --server {url} --token TOKEN --data FILE"
    try:
        identity = msgspec.json.decode(file.read_bytes(), type=Enrolled)
    except FileNotFoundError:
        return Finding("enrolment", "warning", f"this device is not enrolled there ({file})", enrol)
    except (OSError, msgspec.DecodeError) as error:
        return Finding("enrolment", "problem", f"{file} cannot be read ({error})", enrol)
    headers = {"Authorization": f"Bearer {identity.device}.{identity.secret}"} if identity.secret else {}
    try:
        auth = None if identity.secret else signing(store, identity, url)
        asked_for = f"{url}/{VERSION}/bundles/{_NO_BUNDLE}/manifest.json"
        status = client.get(asked_for, headers=headers, auth=auth).status_code
    except httpx.TransportError as error:
        return Finding("enrolment", "problem", f"the server gives no answer ({error})", "try again")
    if status == HTTPStatus.UNAUTHORIZED:
        return Finding("enrolment", "problem", f"the server does not know {identity.device}, or revoked it", enrol)
    if status == HTTPStatus.NOT_FOUND:
        return Finding("enrolment", "ok", f"enrolled as {identity.device}")
    advice = "check --server; if it is right, read the server's log"
    return Finding("enrolment", "problem", f"the server answers {status}", advice)
