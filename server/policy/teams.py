"""Place a round's slots in teams whose devices train the same units, for secure aggregation.

A unit's sum is opened where at least `min_holders` devices are in it, so each unit that a round trains goes to a whole
team. With fewer devices than a round wants the teams are filled one after the other, another one first in each round.
"""

from __future__ import annotations

from server.policy.assignment import RoundSlot, Split, slots

SPARE = 2
"""The number of a team's devices that may vanish."""


def teams_of(per_round: int, least: int) -> int:
    return max(1, per_round // (least + SPARE))


def team_slots(assignment: Split, units: int, teams: int, count: int, least_units: int) -> list[RoundSlot]:
    """Return `count` slots, those of a team one after the other."""
    groups = [slot.units for slot in slots(assignment, units, teams, teams, least_units)]
    return [RoundSlot(number, groups[number * teams // count]) for number in range(count)]


def team_in_turn(number: int, teams: int, count: int) -> frozenset[int]:
    """Return the slots that a round fills first."""
    first = (number - 1) % teams
    return frozenset(slot for slot in range(count) if slot * teams // count == first)
