"""Share between the implementations of ExecuTorch: a file per segment, opened once for all of its methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge_client.bundle.manifest import ProgramSpec
from edge_client.errors import BundleError
from edge_client.runtimes.runtime import CPU, Runtime


class PteRuntime(Runtime):
    """A file is open as long as one of its methods is loaded."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        self._files: dict[str, Any] = {}

    @abstractmethod
    def _open(self, path: Path) -> Any:
        """Open a file as the library's own object."""

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            if not path.is_file():
                raise BundleError(f"{name} is missing from the bundle {self.folder}; copy it again")
            self._files[name] = self._open(path)
        return self._files[name]

    def _free(self, programs: Iterable[tuple[str, str]]) -> None:  # noqa: ARG002 -- these and all others
        """XNNPACK gives the memory that programs share back with the last of them.

        Where some stay, it grows for the next ones beside what there was.
        """
        self.close()

    def release(self, program: ProgramSpec) -> None:
        super().release(program)
        self._close_unused()

    def close(self) -> None:
        super().close()
        self._close_unused()

    def _close_unused(self) -> None:
        """Close files that nothing uses: an open one takes memory as long as it is referenced."""
        used = {file for file, _ in self._loaded}
        self._files = {name: opened for name, opened in self._files.items() if name in used}

    def _refused(self, program: ProgramSpec, error: Exception) -> BundleError:
        self._close_unused()
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return BundleError(
            f"ExecuTorch cannot load {program.method} of {program.file}: {why}; the bundle is damaged, or was written "
            "by a newer executorch than the one installed here"
        )
