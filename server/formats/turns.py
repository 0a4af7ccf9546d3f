"""A chat template taken apart: what stands around each role's words, where every turn is written alike.

Jinja's templates are programs, and other programs read others. Most only put fixed words around each message: these are
found by rendering marks in the messages' place. One that does more is told as it is, by nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge_client.data.templates import ANSWERING, Message, Template
from edge_client.errors import SpryError

_SYSTEM, _USER = "system", "user"
_MARKS = ("7253190841", "4480916273", "9136072548", "6051827394")
"""In the place of messages: what no filter of a template changes, and no template says itself."""
_OF_TODAY = "strftime_now"


class Around(NamedTuple):
    """What is written before a message, and after it."""

    before: str
    after: str


class Turns(NamedTuple):
    """A template that writes every message between the words of its role."""

    lead: str
    """Before the first, without the token that begins every text."""
    roles: dict[str, Around]
    asking: str
    """After the last, where an answer is to be written."""

    def written(self, messages: Sequence[Message]) -> str:
        """A conversation that asks for an answer."""
        turns = ((self.roles[str(one["role"])], str(one["content"])) for one in messages)
        return self.lead + "".join(f"{role.before}{words}{role.after}" for role, words in turns) + self.asking


def turns_of(template: Template) -> Turns | None:
    """None where there is no template, or one that writes a message by what comes before or after it."""
    if not template.source or _OF_TODAY in template.source:
        return None
    found = _found(template)
    if found is None:
        return None
    begin = template.tokens.get("bos_token", "")
    plain = found._replace(lead=found.lead.removeprefix(begin)) if begin else found
    everything = (plain.lead, plain.asking, *(text for role in plain.roles.values() for text in role))
    if begin and any(begin in text for text in everything):
        return None
    return plain if _holds(template, found) else None


def _found(template: Template) -> Turns | None:
    one, two = _pieces(template, [_USER], asks=False), _pieces(template, [_USER], asks=True)
    four = _pieces(template, [_USER, ANSWERING, _USER, ANSWERING], asks=False)
    if one is None or two is None or four is None:
        return None
    answer_after, user_after = four[4], one[1]
    user_before = four[2].removeprefix(answer_after)
    lead, answer_before = four[0].removesuffix(user_before), four[1].removeprefix(user_after)
    asking = two[1].removeprefix(user_after)
    roles = {_USER: Around(user_before, user_after), ANSWERING: Around(answer_before, answer_after)}
    system = _pieces(template, [_SYSTEM, _USER], asks=False)
    if system is not None:
        roles = {_SYSTEM: Around(system[0].removeprefix(lead), system[1].removesuffix(user_before)), **roles}
    return Turns(lead, roles, asking)


def _pieces(template: Template, roles: Sequence[str], *, asks: bool) -> list[str] | None:
    """What is written around the messages; None where the template refuses them or writes one not once."""
    text = _rendered(template, [_message(role, mark) for role, mark in zip(roles, _MARKS, strict=False)], asks=asks)
    if text is None:
        return None
    pieces = list[str]()
    for mark in _MARKS[: len(roles)]:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            return None
        pieces.append(before)
    return [*pieces, text]


def _holds(template: Template, turns: Turns) -> bool:
    """Whether conversations of other lengths are written so too."""
    systems = ((), (_SYSTEM,)) if _SYSTEM in turns.roles else ((),)
    for system in systems:
        for rounds in range(3):
            roles = [*system, *(_USER, ANSWERING) * rounds, _USER]
            messages = [_message(role, f"{number} words") for number, role in enumerate(roles)]
            if _rendered(template, messages, asks=True) != turns.written(messages):
                return False
    return True


def _rendered(template: Template, messages: Sequence[Message], *, asks: bool) -> str | None:
    try:
        return template.render(messages, asks)
    except SpryError:
        return None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
