"""Which programs make up a step, where tangents can start, and what each choice costs.

A model is a chain of segments, `embed`, groups of blocks, `head`. A forward-mode step runs `plain` programs up to the
cut, the cut segment's `enter`, where tangents start, and `dual` programs after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_client.errors import BundleError

from .manifest import DUAL, ENTER, PLAIN, SCALAR, VJP, Manifest, ProgramKind, ProgramSpec, Unit

Cut = int | str
"""A segment, by its position in the chain or by its name."""


@dataclass(frozen=True)
class Cost:
    """The cost of some programs when they are loaded side by side and run once, in turn."""

    flops: int
    load_bytes: int
    peak_bytes: int
    """Highest memory above what is loaded."""


@dataclass(frozen=True)
class CutCost:
    """A segment at which tangents can start."""

    index: int
    name: str
    first_block: int
    step: Cost
    suffix: Cost
    """A step from kept hidden states, with the programs before the cut released."""


class Chain:
    """The programs of one runtime at one batch size, length and number of directions K."""

    def __init__(self, manifest: Manifest, runtime: str, batch: int, length: int, directions: int = 1) -> None:
        if runtime not in manifest.runtimes:
            raise BundleError(
                f"the bundle has no programs for {runtime}; it has {', '.join(manifest.runtimes) or 'none'}"
            )
        if (batch, length) not in manifest.shapes:
            offered = ", ".join(f"{b}x{t}" for b, t in manifest.shapes)
            raise BundleError(f"the bundle has no programs for batch x length {batch}x{length}; it has {offered}")
        if directions not in manifest.directions:
            offered = ", ".join(str(k) for k in manifest.directions) or "none"
            raise BundleError(f"the bundle has no programs with {directions} directions; it has {offered}")
        self.manifest = manifest
        self.runtime = runtime
        self.batch = batch
        self.length = length
        self.directions = directions
        self.segments = tuple(segment.name for segment in manifest.segments)
        self.first_use = first_uses(manifest)
        self.last_use = last_uses(manifest)
        self.programs = {
            (program.segment, program.kind): program
            for program in manifest.runtimes[runtime].programs
            if (program.batch, program.length) == (batch, length) and program.directions in (0, directions)
        }

    @property
    def head(self) -> int:
        """The head's position."""
        return len(self.segments) - 1

    def has(self, segment: int, kind: ProgramKind) -> bool:
        """Tell whether a segment has a program of a kind."""
        return (self.segments[segment], kind) in self.programs

    def program(self, segment: int, kind: ProgramKind) -> ProgramSpec:
        """Return a segment's program of a kind."""
        name = self.segments[segment]
        program = self.programs.get((name, kind))
        if program is None:
            offered = ", ".join(other for owner, other in self.programs if owner == name) or "none"
            raise BundleError(
                f"the bundle has no {kind} program of {name} for {self.runtime}, {self.batch}x{self.length}, "
                f"K={self.directions}; it has {offered}"
            )
        return program

    def position(self, cut: Cut) -> int:
        """Return the position of a segment given by name or by position."""
        return position(self.manifest, cut)

    def starts(self) -> list[int]:
        """Return the segments at which tangents can start."""
        return [i for i in range(len(self.segments)) if self.has(i, ENTER)]

    def forward(self, first: int = 0) -> list[ProgramSpec]:
        """Return the programs of a pass without derivatives, from a segment on."""
        return [self.program(i, PLAIN) for i in range(first, len(self.segments))]

    def prefix(self, cut: int) -> list[ProgramSpec]:
        """Return the programs before a cut."""
        return [self.program(i, PLAIN) for i in range(cut)]

    def suffix(self, cut: int, *, scalar: bool = False) -> list[ProgramSpec]:
        """Return the programs of a step from its cut on; `scalar`: with the head's derivative, not its gradient."""
        if cut == self.head:
            return [self.program(cut, SCALAR if scalar and self.manifest.head else self._lone_head())]
        last: ProgramKind = SCALAR if scalar and self.manifest.head else DUAL
        return [*self.tangents(cut, self.head), self.program(self.head, last)]

    def tangents(self, cut: int, end: int) -> list[ProgramSpec]:
        """Return the programs that carry tangents from the cut to another segment."""
        if cut >= end:
            return []
        if not self.has(cut, ENTER):
            offered = ", ".join(self.segments[i] for i in self.starts()) or "none"
            raise BundleError(f"no tangent can start at {self.segments[cut]}; the bundle's cuts: {offered}")
        return [self.program(cut, ENTER), *(self.program(i, DUAL) for i in range(cut + 1, end))]

    def exact(self, cut: int) -> list[ProgramSpec]:
        """Return the programs of a step in reverse mode, back to the first unit at or after the cut."""
        lowest = min((use for use in self.first_use.values() if use >= cut), default=self.head)
        return self.mixed(lowest, lowest)

    def mixed(self, cut: int, exact_cut: int) -> list[ProgramSpec]:
        """Return the programs of a step with tangents from the cut on, and in reverse mode from another one on."""
        forward = [self.program(i, PLAIN) for i in range(exact_cut, self.head)]
        backwards = [self.program(i, VJP) for i in range(exact_cut, self.head + 1)]
        return [*self.prefix(cut), *self.tangents(cut, exact_cut), *forward, *backwards]

    def _lone_head(self) -> ProgramKind:
        """Tell whether a head without units takes its exact program: its own gradient needs no tangent."""
        return ENTER if self.has(self.head, ENTER) else VJP

    def costs(self) -> list[CutCost]:
        """Compute a step's cost from each cut."""
        return [
            CutCost(
                index=cut,
                name=self.segments[cut],
                first_block=self.manifest.segments[cut].first_block,
                step=cost([*self.prefix(cut), *self.suffix(cut)]),
                suffix=cost(self.suffix(cut)),
            )
            for cut in self.starts()
        ]


def cost(programs: Sequence[ProgramSpec]) -> Cost:
    """Add up what programs cost that are loaded side by side and run one after the other."""
    return Cost(
        flops=sum(program.flops for program in programs),
        load_bytes=sum(program.load_bytes for program in programs),
        peak_bytes=max((program.peak_bytes for program in programs), default=0),
    )


def bytes_of(programs: Sequence[ProgramSpec], *, low_memory: bool = False) -> int:
    """Estimate the bytes that a process takes for programs, all side by side or with `low_memory` one at a time."""
    if low_memory:
        return max((program.load_bytes + program.peak_bytes for program in programs), default=0)
    total = cost(programs)
    return total.load_bytes + total.peak_bytes


def cuts(
    manifest: Manifest,
    runtime: str,
    *,
    batch: int | None = None,
    length: int | None = None,
    directions: int | None = None,
) -> list[CutCost]:
    """Return the segments at which tangents can start; sizes left out take the bundle's first."""
    fitting = [(b, t) for b, t in manifest.shapes if batch in (None, b) and length in (None, t)]
    shape = fitting[0] if fitting else (batch or 0, length or 0)
    count = directions if directions is not None else next(iter(manifest.directions), 0)
    return Chain(manifest, runtime, *shape, count).costs()


def position(manifest: Manifest, cut: Cut) -> int:
    """Return the number of a segment given by name or number."""
    names = [segment.name for segment in manifest.segments]
    if isinstance(cut, str) and cut in names:
        return names.index(cut)
    if isinstance(cut, int) and 0 <= cut < len(names):
        return cut
    raise BundleError(f"the bundle has no segment {cut!r}; it has {', '.join(names)}, numbered from 0")


def cut_for(manifest: Manifest, units: Iterable[int]) -> int:
    """Return the latest cut with every use of these units at or after it; the head where there are none.

    Units are given by their numbers. Every segment that holds a unit can be a cut, so the latest is the first use.
    """
    return min((first_use(manifest, unit_at(manifest, number)) for number in units), default=len(manifest.segments) - 1)


def exact_cut(manifest: Manifest, cut: int, blocks: int) -> int:
    """The segment that a step from a cut goes back to if it may go back through so many of the model's last blocks.

    What is trained behind the cut lies wholly before that segment or wholly behind it: weights that several blocks
    share would want tangents and gradients at once. Nothing is gone through in vain, so that the first unit is the
    farthest.
    """
    head, beginning = len(manifest.segments) - 1, manifest.model.blocks - blocks
    uses = [(first_use(manifest, unit), last_use(manifest, unit)) for unit in manifest.units]
    behind = [(first, last) for first, last in uses if first >= cut]
    farthest = min((first for first, _ in behind), default=head)
    wanted = next((i for i, segment in enumerate(manifest.segments) if segment.first_block >= beginning), head)
    while across := [last for first, last in behind if first < wanted <= last]:
        wanted = max(across) + 1
    return min(max(wanted, farthest), head)


def first_use(manifest: Manifest, unit: Unit) -> int:
    """Return the number of the first segment that a unit is used in."""
    return min(_uses(manifest, unit))


def last_use(manifest: Manifest, unit: Unit) -> int:
    """Return the number of the last segment that a unit is used in."""
    return max(_uses(manifest, unit))


def _uses(manifest: Manifest, unit: Unit) -> list[int]:
    names = [segment.name for segment in manifest.segments]
    return [names.index(segment) for segment in unit.segments]


def first_uses(manifest: Manifest) -> dict[str, int]:
    """Return the number of the first segment that each of the units' parameters is used in, by their names."""
    return {p.name: first_use(manifest, unit) for unit in manifest.units for p in unit.parameters}


def last_uses(manifest: Manifest) -> dict[str, int]:
    """Return the number of the last segment that each of the units' parameters is used in, by their names."""
    return {p.name: last_use(manifest, unit) for unit in manifest.units for p in unit.parameters}


def unit_at(manifest: Manifest, number: int) -> Unit:
    """Return the unit of a number."""
    if not 0 <= number < len(manifest.units):
        raise BundleError(f"the bundle has no unit {number}; it has {len(manifest.units)}, numbered from 0")
    return manifest.units[number]


def directions_at_once(manifest: Manifest, directions: int) -> int:
    """Return the largest number of directions that there are programs for and that divides what is wanted."""
    fitting = [k for k in manifest.directions if directions % k == 0]
    return max(fitting, default=next(iter(manifest.directions), directions))
