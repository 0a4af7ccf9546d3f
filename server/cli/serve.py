"""`spry serve`: the server with the options that people ask for; `uvicorn server.app:app` has all others."""

from __future__ import annotations

import ipaddress
import os
import signal
import ssl
from pathlib import Path
from typing import Annotated

import typer

from server import logs
from server.errors import ServerConfigError
from server.processes import check_free
from server.settings import read_settings
from server.storage.store import Store


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 8000,
    data: Annotated[Path | None, typer.Option(help="The data folder; $SPRY_DATA_DIR, or spry-data.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM): serve https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM).")] = None,
    plain_http: Annotated[
        bool,
        typer.Option(
            "--plain-http", help="Listen beyond this machine without TLS, on a trusted network or behind a proxy."
        ),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that answer requests.")] = 1,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="Log one JSON object on each line, to stdout.")
    ] = False,
) -> None:
    """Run the server.

    Example: spry serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    if (tls_cert is None) != (tls_key is None):
        raise ServerConfigError("--tls-cert and --tls-key belong together: give both")
    for file in (tls_cert, tls_key):
        if file is not None and not file.is_file():
            raise ServerConfigError(f"{file} does not exist; give a certificate and its key as PEM files")
    if tls_cert is not None and tls_key is not None:
        _check_pair(tls_cert, tls_key)
    if tls_cert is None and not plain_http and not _is_loopback(host):
        raise ServerConfigError(
            f"listening on {host} without TLS would show devices' secrets to the network: give --tls-cert and "
            "--tls-key, or --plain-http on a network that you trust"
        )
    if data is not None:
        os.environ["SPRY_DATA_DIR"] = str(data)  # worker processes read it too
    if json_logs:
        os.environ["SPRY_LOG_FORMAT"] = "json"
    # What cannot work is refused here in one line; in the middle of uvicorn's start much else stands around it.
    settings = read_settings()
    check_free(host, port)  # before the administrator's token is there, which says that this server runs
    Store(settings).close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # uvicorn ends by itself, with the code that a service expects
    logs.configure()  # the process that starts workers does not load the application
    uvicorn.run(
        "server.app:app",
        host=host,
        port=port,
        workers=workers,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        timeout_graceful_shutdown=10,
        proxy_headers=False,  # the application knows which proxies to believe
        log_config=None if settings.log_format == "json" else LOGGING_CONFIG,
    )


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        what = f"{certificate} and {key} are no certificate with its key as PEM"
        raise ServerConfigError(f"{what} ({error}): give a certificate and its own key") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
