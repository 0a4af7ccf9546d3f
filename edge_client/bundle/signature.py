"""Sign a bundle: signatures over the bytes of its manifest, which holds the hash of every other file.

They stand in a file beside the manifest, a line for each key, so that a bundle may pass from one key to the next.
"""

from __future__ import annotations

from pathlib import Path

from edge_client import keys
from edge_client.errors import BundleError

from . import manifest as manifests

SIGNATURES = "manifest.sig"
LARGEST = 4096
"""Bytes: some thirty keys."""


def sign(folder: Path, secret: str) -> str:
    """Sign a bundle's manifest, beside those who have; gives back the public key."""
    path = folder / manifests.FILE_NAME
    manifests.read(path)
    signature, public = keys.sign(secret, path.read_bytes()), keys.public_of(secret)
    kept = folder / SIGNATURES
    signatures = parse(kept.read_bytes()) if kept.is_file() else {}
    kept.write_text("".join(f"{key} {keys.encoded(one)}\n" for key, one in {**signatures, public: signature}.items()))
    return public


def parse(data: bytes) -> dict[str, bytes]:
    """Read each key's signature; refuse a file that has none."""
    signatures: dict[str, bytes] = {}
    for line in data.decode("ascii", "replace").splitlines() if len(data) <= LARGEST else [""]:
        key, _, text = line.partition(" ")
        signature = keys.decoded(text, keys.SIGNATURE_BYTES)
        if keys.decoded(key, keys.KEY_BYTES) is None or signature is None:
            raise BundleError(f"{SIGNATURES} holds something else than signatures; sign the bundle again")
        signatures[key] = signature
    return signatures


def check(manifest: bytes, signatures: bytes | None, publisher: str) -> None:
    """Refuse a manifest that the publisher whose key is pinned did not sign."""
    if signatures is None:
        raise BundleError(
            f"the bundle is not signed, and this device takes only those of the publisher {publisher}: sign it with "
            "`spry keys sign` and upload it again"
        )
    signature = parse(signatures).get(publisher)
    if signature is None or not keys.verify(publisher, manifest, signature):
        raise BundleError(
            f"the bundle is not signed by the publisher {publisher}, and this device takes only that publisher's "
            "bundles: sign it with that key, or give the right one with --trust"
        )


def check_folder(folder: Path, publisher: str) -> None:
    """Refuse a bundle on disk that the publisher whose key is pinned did not sign."""
    kept = folder / SIGNATURES
    check((folder / manifests.FILE_NAME).read_bytes(), kept.read_bytes() if kept.is_file() else None, publisher)
