"""Estimate a simulated client's memory on a device, as an exported bundle's programs were measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Task, Training
from server.errors import SimulationError
from server.policy.assignment import Needs, RoundSlot


class DeviceMemory:
    """Bytes that steps take on a device which has a bundle of the simulated model, with the first of its runtimes."""

    def __init__(self, bundle: Path, simulated: Manifest, training: Training) -> None:
        manifest = Bundle.open(bundle, verify=False).manifest
        if manifest.units != simulated.units or manifest.head != simulated.head:
            raise SimulationError(
                f"{bundle} (--costs) has other units or another head than the simulation: export the same model, with "
                "the same adapter and labels"
            )
        if not any(program.peak_bytes for runtime in manifest.runtimes.values() for program in runtime.programs):
            raise SimulationError(f"{bundle} (--costs) has no measured memory: export it again without --no-measure")
        self._manifest = manifest
        self._needs: dict[Training, Needs] = {}
        self._runtimes = list(manifest.runtimes)
        if self._bytes((), training) is None:
            raise SimulationError(
                f"{bundle} (--costs) has no programs for length {training.length} and a batch of at most "
                f"{training.batch}: export it with them"
            )

    def peak(self, tasks: Iterable[Task]) -> int:
        """Return the most that a step of one of these takes, its loaded programs included."""
        return max(self._bytes(tuple(task.units), task.training) or 0 for task in tasks)

    def _bytes(self, units: tuple[int, ...], training: Training) -> int | None:
        needs = self._needs.setdefault(training, Needs(self._manifest, training))
        fit = needs.fit(RoundSlot(0, units), self._runtimes, None)
        return None if fit is None else fit.needs
