"""A bundle on disk: opened, checked against its manifest, and read.

Nothing outside a bundle's folder is ever read, whatever its manifest contains.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import BundleError, is_panic

from . import manifest as manifests
from .manifest import FILE_NAME, FileSpec, Manifest, ProgramSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from typing_extensions import Self

CHUNK = 1 << 20


class Bundle:
    """A bundle's folder with its manifest."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path | str, *, verify: bool | str = True) -> Self:
        """Read a bundle's manifest, and check its files.

        Args:
            path: the bundle's folder.
            verify: compare every file with its hash; a runtime's name leaves out the files of other runtimes;
                False checks only that files are there with the right size.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise BundleError(f"{folder} is no folder; give the folder that `spry export` wrote")
        manifest = manifests.read(folder / FILE_NAME)
        if isinstance(verify, str):
            _runtime(manifest, verify)
        for file in files_of(manifest, verify) if isinstance(verify, str) else manifest.files:
            check_file(folder, file, digest=bool(verify))
        return cls(folder, manifest)

    @property
    def bytes(self) -> int:
        """The size of all files but the manifest."""
        return sum(file.bytes for file in self.manifest.files)

    def programs(self, runtime: str) -> tuple[ProgramSpec, ...]:
        """Return the programs of a runtime."""
        return _runtime(self.manifest, runtime).programs

    def initial_adapter(self) -> dict[str, NDArray[np.float32]]:
        """Return the adapter and the head before training, under PEFT's keys."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.folder / self.manifest.adapter.file
        try:
            loaded = load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise BundleError(f"{path} cannot be read as safetensors ({error}); copy the bundle again") from None
        values = {name: np.array(value, np.float32) for name, value in loaded.items()}
        for parameter in self.manifest.trained:
            shape = values[parameter.name].shape if parameter.name in values else None
            if shape != parameter.shape:
                raise BundleError(
                    f"{path}: expected {parameter.name} of shape {list(parameter.shape)}, found "
                    f"{'none' if shape is None else list(shape)}; export the bundle again"
                )
        return values

    def tokenizer(self) -> Tokenizer:
        """Return the model's own tokenizer."""
        from tokenizers import Tokenizer

        if self.manifest.tokenizer is None:
            raise BundleError(f"{self.folder} holds no tokenizer: its model came without one; give token ids instead")
        path = self.folder / self.manifest.tokenizer
        try:
            return Tokenizer.from_file(str(path))
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):  # the library raises nothing narrower
                raise
            raise BundleError(f"{path} cannot be read as a tokenizer ({error}); copy the bundle again") from None


def files_of(manifest: Manifest, runtime: str) -> list[FileSpec]:
    """Return all files but those that only other runtimes need."""
    needed = _needed(manifest, runtime)
    foreign = {path for other in manifest.runtimes if other != runtime for path in _needed(manifest, other)} - needed
    return [file for file in manifest.files if file.path not in foreign]


def _needed(manifest: Manifest, runtime: str) -> set[str]:
    spec = manifest.runtimes[runtime]
    return {*spec.files, *(program.file for program in spec.all_programs)}


def _runtime(manifest: Manifest, runtime: str) -> manifests.RuntimeSpec:
    if runtime not in manifest.runtimes:
        offered = ", ".join(manifest.runtimes) or "none"
        raise BundleError(
            f"the bundle has no programs for {runtime}; it has {offered}: export it with --target {runtime}"
        )
    return manifest.runtimes[runtime]


# --- checking --------------------------------------------------------------------------------------------------------


def check_file(folder: Path, file: FileSpec, *, digest: bool = True) -> None:
    """Refuse a file that lies outside the folder or is not what the manifest says."""
    path = folder / safe_path(file.path, folder)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path} links to a place outside the bundle; copy the bundle with its files")
    if not path.is_file():
        raise BundleError(f"{path} is missing from the bundle; copy or download the bundle again")
    size = path.stat().st_size
    if size != file.bytes:
        what = "truncated" if size < file.bytes else "too long"
        raise BundleError(f"{path} is {what}: expected {file.bytes} bytes, found {size}; copy the bundle again")
    if digest and (actual := sha256(path)) != file.sha256:
        raise BundleError(
            f"{path} is corrupt: expected sha256 {file.sha256[:12]}…, found {actual[:12]}…; copy the bundle again"
        )


def safe_path(path: str, where: Path) -> PurePosixPath:
    """Return a path below the bundle's folder on any system."""
    parts = PurePosixPath(path).parts
    if (
        not parts
        or PureWindowsPath(path).drive
        or path.startswith("/")
        or "\\" in path
        or "\0" in path
        or ".." in parts
    ):
        raise BundleError(f"{where} names the file {path!r}, which does not lie inside the bundle; do not trust it")
    return PurePosixPath(path)


def sha256(path: Path) -> str:
    """Return a file's digest in hexadecimal digits, read in pieces."""
    import hashlib  # OpenSSL, which a process that trusts its bundle need not load: 4 MB

    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb") as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
