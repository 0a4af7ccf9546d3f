"""Reduce a chat template to the words around each role's messages, the form that other programs read.

A template that writes a message by what comes before or after it has no such form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge_client.data import turns
from edge_client.data.templates import ANSWERING, Message, Template
from edge_client.data.turns import SYSTEM, USER


class Around(NamedTuple):
    """The texts before a message, and after it."""

    before: str
    after: str


class Turns(NamedTuple):
    """A template that writes every message between the words of its role."""

    lead: str
    """The words before the first message, without the token that begins every text."""
    roles: dict[str, Around]
    asking: str
    """The words after the last message, where an answer is to be written."""

    def written(self, messages: Sequence[Message]) -> str:
        """Write a conversation that asks for an answer."""
        said = ((self.roles[str(one["role"])], str(one["content"])) for one in messages)
        return self.lead + "".join(f"{role.before}{words}{role.after}" for role, words in said) + self.asking


def turns_of(template: Template) -> Turns | None:
    """Return a template's turns; None without one, or if it has the date or a message depends on what is around it."""
    of_template = turns.turns_of(template)
    if of_template is None or turns.dated(of_template) != of_template:
        return None
    between = of_template.between
    ends = {role: between[role][""] for role in between if role}
    before_user = between[ANSWERING][USER].removeprefix(ends[ANSWERING])
    begins = {USER: before_user, ANSWERING: between[USER][ANSWERING].removeprefix(ends[USER])}
    ends[""] = between[""][USER].removesuffix(before_user)
    if SYSTEM in between[""]:
        begins[SYSTEM] = between[""][SYSTEM].removeprefix(ends[""])
        ends[SYSTEM] = between[SYSTEM][USER].removesuffix(before_user)
    pairs = [("", role) for role in begins if role in between[""]]
    pairs += [(one, other) for one in begins for other in between[one] if other in begins]
    if any(between[one][other] != ends[one] + begins[other] for one, other in pairs):
        return None
    roles = {role: Around(begins[role], ends[role]) for role in (SYSTEM, USER, ANSWERING) if role in begins}
    return _begun(Turns(ends[""], roles, of_template.asking.removeprefix(ends[USER])), template)


def _begun(written: Turns, template: Template) -> Turns | None:
    """Drop the token that begins a text, which readers of the words add themselves."""
    begin = template.tokens.get("bos_token", "")
    if not begin:
        return written
    plain = written._replace(lead=written.lead.removeprefix(begin))
    everything = (plain.lead, plain.asking, *(text for role in plain.roles.values() for text in role))
    return None if any(begin in text for text in everything) else plain
