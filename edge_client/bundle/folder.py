"""A bundle on disk: opened, checked against its manifest, and read.

A bundle is a folder, or a `.zip` of one that is unpacked first. Nothing outside the folder is ever read or written,
whatever a manifest or an archive contains.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import BundleError, is_panic

from . import manifest as manifests
from . import signature
from .manifest import FILE_NAME, FileSpec, Manifest, ProgramSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from typing_extensions import Self

CHUNK = 1 << 20


class Bundle:
    """An open bundle. Closing it removes what `open` unpacked into a temporary folder."""

    def __init__(self, folder: Path, manifest: Manifest, *, temporary: Path | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._temporary = temporary

    @classmethod
    def open(cls, path: Path | str, *, verify: bool | str = True, unpack_into: Path | str | None = None) -> Self:
        """Open a folder or a `.zip`.

        Args:
            path: the bundle.
            verify: compare every file with its hash; a runtime's name leaves out the files of other runtimes;
                False checks only that files are there with the right size.
            unpack_into: where a `.zip` is unpacked, once; a temporary folder when left out.
        """
        path = Path(path)
        if path.is_dir():
            return cls._checked(path, verify)
        if not path.exists():
            raise BundleError(f"{path} does not exist; give the folder or .zip that `spry export` wrote")
        if unpack_into is not None:
            return cls._checked(unpack(path, Path(unpack_into)), verify)
        temporary = Path(tempfile.mkdtemp(prefix="spry-"))
        try:
            return cls._checked(unpack(path, temporary), verify, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    @classmethod
    def _checked(cls, folder: Path, verify: bool | str, temporary: Path | None = None) -> Self:
        manifest = manifests.read(folder / FILE_NAME)
        if isinstance(verify, str):
            _runtime(manifest, verify)
        for file in files_of(manifest, verify) if isinstance(verify, str) else manifest.files:
            check_file(folder, file, digest=bool(verify))
        return cls(folder, manifest, temporary=temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was unpacked into a temporary folder."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

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


# --- unpacking -------------------------------------------------------------------------------------------------------


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a zipped bundle into a folder of its own below `into`, named by its manifest; done before, it is reused.

    Only what the manifest lists is unpacked, and no more bytes than it says.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            return _unpack(source, archive, into)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BundleError(f"{archive} is not a whole .zip file ({error}); copy or download the bundle again") from None


def _unpack(source: zipfile.ZipFile, archive: Path, into: Path) -> Path:
    members = {member.filename: member for member in source.infolist() if not member.is_dir()}
    top = min((name for name in members if PurePosixPath(name).name == FILE_NAME), key=len, default=None)
    if top is None:
        raise BundleError(f"{archive} holds no {FILE_NAME}; give a .zip that `spry export` wrote")
    data = source.read(top)
    manifest = manifests.parse(data, f"{archive}/{top}")
    import hashlib

    target = into / hashlib.sha256(data).hexdigest()[:16]
    if _is_whole(target, manifest):
        return target
    shutil.rmtree(target, ignore_errors=True)
    into.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="unpacking-", dir=into))
    try:
        for file in manifest.files:
            name = top.removesuffix(FILE_NAME) + file.path
            if name not in members:
                raise BundleError(f"{archive} lacks {name}, which its manifest lists; copy or download it again")
            _extract(source, members[name], partial / safe_path(file.path, archive), file)
        _unpack_signature(source, members.get(top.removesuffix(FILE_NAME) + signature.SIGNATURES), partial)
        (partial / FILE_NAME).write_bytes(data)
        partial.rename(target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not (isinstance(error, OSError) and _is_whole(target, manifest)):  # else another process was first
            raise
    return target


def _unpack_signature(source: zipfile.ZipFile, member: zipfile.ZipInfo | None, into: Path) -> None:
    if member is not None and member.file_size <= signature.LARGEST:
        (into / signature.SIGNATURES).write_bytes(source.read(member))


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    try:
        for file in manifest.files:
            check_file(folder, file, digest=False)
    except BundleError:
        return False
    return (folder / FILE_NAME).is_file()


def _extract(source: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, file: FileSpec) -> None:
    if stat.S_ISLNK(member.external_attr >> 16):
        raise BundleError(f"{source.filename}: {member.filename} is a link; a bundle holds plain files only")
    if member.file_size != file.bytes:
        raise BundleError(
            f"{source.filename}: {member.filename} has {member.file_size} bytes where its manifest says {file.bytes}; "
            "copy or download it again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with source.open(member) as packed, path.open("xb") as plain:
        shutil.copyfileobj(packed, plain, CHUNK)
