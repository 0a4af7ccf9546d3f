"""Bundles on the server: uploaded file by file, each verified by its hash, and served to devices.

Where servers share a home for them (`server.storage.files.shared`), a file is there before its upload is answered, and
each server copies what it is asked for to its own folder.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

from edge_client import keys
from edge_client.bundle import manifest as manifests
from edge_client.bundle import signature
from edge_client.bundle.folder import Bundle, safe_path, sha256
from edge_client.bundle.manifest import FILE_NAME, FileSpec, Manifest
from edge_client.errors import BundleError
from edge_client.store.files import sync_folder
from server.errors import Refusal
from server.storage.files.shared import BlobStore

PARTIAL = ".partial-"


class BundleFiles:
    """A folder for each bundle, named by the sha256 of its manifest."""

    def __init__(self, folder: Path, largest: int, shared: BlobStore | None = None) -> None:
        self.folder = folder
        self._shared = shared
        self._largest = largest
        folder.mkdir(parents=True, exist_ok=True)
        self.manifest = lru_cache(maxsize=32)(self._manifest)

    def _manifest(self, bundle: str) -> Manifest:
        self._here(bundle, FileSpec(FILE_NAME, bundle, manifests.LARGEST))
        return manifests.read(self.path(bundle) / FILE_NAME)

    def path(self, bundle: str) -> Path:
        if len(bundle) != 64 or not set(bundle) <= set("0123456789abcdef"):
            raise Refusal(404, "unknown", f"a bundle is named by 64 hexadecimal digits, got {bundle!r}")
        return self.folder / bundle

    def expected(self, bundle: str, path: str) -> FileSpec:
        """Look up a file's digest in the manifest; the manifest itself goes by the bundle's name."""
        if path == FILE_NAME:
            return FileSpec(FILE_NAME, bundle, manifests.LARGEST)
        self._require_manifest(bundle)
        for file in self.manifest(bundle).files:
            if file.path == path:
                return file
        raise Refusal(404, "unknown", f"the bundle has no file {path!r}; its {FILE_NAME} lists them")

    def _require_manifest(self, bundle: str) -> None:
        if not self._here(bundle, FileSpec(FILE_NAME, bundle, manifests.LARGEST)):
            raise Refusal(409, "incomplete", f"send {FILE_NAME} of bundle {bundle[:12]}… first")

    def limit(self, bundle: str, path: str) -> int:
        if path == signature.SIGNATURES:
            return signature.LARGEST
        return min(self.expected(bundle, path).bytes, self._largest)

    def add(self, bundle: str, path: str, partial: Path) -> None:
        """Take a received file, if it is what the bundle wants there."""
        if path == signature.SIGNATURES:
            self._add_signatures(bundle, partial)
            return
        expected = self.expected(bundle, path)
        digest = sha256(partial)
        if digest != expected.sha256:
            raise Refusal(
                422, "invalid", f"{path} has sha256 {digest[:12]}…, expected {expected.sha256[:12]}…: send it again"
            )
        if path == FILE_NAME:
            self._check_manifest(partial)
        self._take(bundle, path, partial)

    def _add_signatures(self, bundle: str, partial: Path) -> None:
        """Add a file of signatures, which devices verify; the newest file stands."""
        self._require_manifest(bundle)
        try:
            signature.parse(partial.read_bytes())
        except BundleError as error:
            raise Refusal(422, "invalid", str(error)) from None
        self._take(bundle, signature.SIGNATURES, partial)

    def _take(self, bundle: str, path: str, partial: Path) -> None:
        if self._shared is not None:
            with partial.open("rb") as file:
                self._shared.put(self._key(bundle, path), file)
        self._place(bundle, path, partial)

    def _place(self, bundle: str, path: str, partial: Path) -> None:
        target = self.path(bundle) / safe_path(path, self.path(bundle))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)
        sync_folder(target.parent)

    def _check_manifest(self, partial: Path) -> None:
        try:
            manifest = manifests.parse(partial.read_bytes())
            for file in manifest.files:
                safe_path(file.path, partial)
        except BundleError as error:
            raise Refusal(422, "invalid", str(error)) from None

    def complete(self) -> list[str]:
        """List the bundles that jobs can be made on, the newest first."""
        if self._shared is not None:
            kept = self._shared.below(self.folder.name)
            ages = {key.split("/")[1]: one.changed for key, one in kept.items() if key.endswith(f"/{FILE_NAME}")}
            return [name for name in sorted(ages, key=ages.__getitem__, reverse=True) if not self.missing(name)]
        folders = [path.parent for path in self.folder.glob(f"*/{FILE_NAME}")]
        folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [folder.name for folder in folders if not self.missing(folder.name)]

    def missing(self, bundle: str) -> list[str]:
        """Files that have not arrived yet."""
        folder = self.path(bundle)
        if not self._here(bundle, FileSpec(FILE_NAME, bundle, manifests.LARGEST)):
            return [FILE_NAME]
        if self._shared is not None:
            kept = self._shared.below(f"{self.folder.name}/{bundle}")
            sizes = {key: one.bytes for key, one in kept.items()}
            return [f.path for f in self.manifest(bundle).files if sizes.get(self._key(bundle, f.path)) != f.bytes]
        return [file.path for file in self.manifest(bundle).files if not _is_whole(folder, file)]

    def file(self, bundle: str, path: str) -> tuple[Path, FileSpec]:
        """Return the path and entry of a file to serve."""
        if path == signature.SIGNATURES:
            return self._signatures(bundle)
        spec = self.expected(bundle, path)
        file = self.path(bundle) / safe_path(path, self.path(bundle))
        if not self._here(bundle, spec):
            raise Refusal(404, "unknown", f"{path} of bundle {bundle[:12]}… has not been uploaded; PUT it first")
        return file, spec

    def _signatures(self, bundle: str) -> tuple[Path, FileSpec]:
        file = self._newest_signatures(bundle)
        if not file.is_file():
            raise Refusal(404, "unknown", f"the bundle {bundle[:12]}… is not signed; `spry keys sign` does")
        return file, FileSpec(signature.SIGNATURES, sha256(file), file.stat().st_size)

    def publishers(self, bundle: str) -> list[str]:
        """List the public keys of those whose signatures hold; none where nobody signed."""
        kept, content = self._newest_signatures(bundle), (self.path(bundle) / FILE_NAME).read_bytes()
        signatures = signature.parse(kept.read_bytes()) if kept.is_file() else {}
        return [public for public, one in signatures.items() if keys.verify(public, content, one)]

    def open(self, bundle: str) -> Bundle:
        """Open the whole bundle; its files were verified when they arrived."""
        manifest = self.manifest(bundle)
        for file in manifest.files if self._shared is not None else ():
            self._here(bundle, file)
        return Bundle(self.path(bundle), manifest)

    # --- the home that servers share ---

    def _key(self, bundle: str, path: str) -> str:
        return f"{self.folder.name}/{bundle}/{path}"

    def _here(self, bundle: str, file: FileSpec) -> bool:
        """Tell whether a file is in this server's folder, or was copied to it now."""
        if (self.path(bundle) / safe_path(file.path, self.path(bundle))).is_file():
            return True
        return self._shared is not None and self._copied(self._shared, bundle, file.path, file.sha256)

    def _newest_signatures(self, bundle: str) -> Path:
        """Return the path of the signatures, copied anew from a shared home: people may sign elsewhere."""
        if self._shared is not None:
            self._copied(self._shared, bundle, signature.SIGNATURES, None)
        return self.path(bundle) / signature.SIGNATURES

    def _copied(self, shared: BlobStore, bundle: str, path: str, digest: str | None) -> bool:
        """Copy a file from the home that servers share; False where it is not there, or is another."""
        handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=self.folder)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                found = shared.fetch(self._key(bundle, path), file)
            if found and digest in (None, sha256(partial)):
                self._place(bundle, path, partial)
                return True
        finally:
            partial.unlink(missing_ok=True)
        return False


def _is_whole(folder: Path, file: FileSpec) -> bool:
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.bytes
