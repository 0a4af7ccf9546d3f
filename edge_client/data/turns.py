"""A chat template as plain data, for readers that have no Jinja: what stands before, between and behind messages.

Templates are programs, but most only write fixed words around messages, by the roles of the two that meet. These words
are found by rendering marks in the messages' place, and then held against the template on conversations at random, with
the words that the template itself looks for. Where it tells today's date these words have its form, between two
characters of their own, and who writes a conversation puts the day in. Thoughts that it shows in the last answer alone,
or never, are read too. A template that does more, such as count, is nothing here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from edge_client.bundle.manifest import ThoughtsSpec, TurnsSpec
from edge_client.errors import SpryError

from .templates import ANSWERING, Chat, Message, Span, Template, today

SYSTEM, USER = "system", "user"
_EDGE = ""
"""The edge of a conversation, in place of a role: where it begins and ends."""
_MARKS = ("7253190841", "4480916273", "9136072548", "6051827394")
"""The marks in place of messages: no filter of a template changes them, and no template writes them itself."""
_IN_TURN = {_EDGE: {SYSTEM, USER}, SYSTEM: {USER}, USER: {ANSWERING}, ANSWERING: {USER}}
_AFTER = (
    {last: {SYSTEM, USER, ANSWERING} for last in (_EDGE, SYSTEM, USER, ANSWERING)},
    _IN_TURN,
    {**_IN_TURN, _EDGE: {USER}},
)
"""The roles that may follow another: in any order, in turn, in turn and without a system message."""
_OPENS, _CLOSES = "\ue000", "\ue001"
"""Around a date's form: characters that nobody writes."""
_DAY = re.compile(f"{_OPENS}([^{_CLOSES}]*){_CLOSES}")
_FORM = re.compile(r"([^%a-zA-Z]|%[aAbBdmYyHMS])*", re.ASCII)
"""Forms of dates that are the same in every language of programs."""
_TAG = re.compile(r"</(\w*(?:think|thought|reason)\w*)>")
"""The tags that close thoughts, as far as names tell."""
_TRIES, _LONGEST = 150, 7
_PLAIN = ("", "tea", "is hot, ", " \n", "\n", "naïve 日本語", "42", "\u00a0", "\t- x")


def turns_of(template: Template) -> TurnsSpec | None:
    """Read a template's turns; None without a template, or where it does more. Answers that are not found are None."""
    if not template.source or _OPENS in template.source:
        return None
    days = _Days()
    template = Template(template.source, template.tokens, days)
    read = (turns for after in _AFTER if (turns := _read(template, after)))
    tags = sorted(set(_TAG.findall(template.source)))
    read = chain(read, (turns for after in _AFTER[1:] for tag in tags if (turns := _thinking(template, after, tag))))
    known = [turns for turns in read if days.are_whole(turns) and _holds(template, turns)]
    for turns in known:
        if turns.answers and _learns(template, turns):
            return turns
    return replace(known[0], answers=None) if known else None


def written(turns: TurnsSpec, messages: Sequence[Message], *, asks: bool = False) -> str:
    """Write a conversation's text; `asks`: with what asks for the next answer, where the user spoke last."""
    return _written(dated(turns), messages, asks=asks)[0]


def chat(turns: TurnsSpec, messages: Sequence[Message]) -> Chat:
    """Write a conversation's text, and return where its answers are."""
    return _chat(dated(turns), messages)


def dated(turns: TurnsSpec) -> TurnsSpec:
    """Fill in today's date."""
    between = {one: {other: _dated(text) for other, text in texts.items()} for one, texts in turns.between.items()}
    answers = turns.answers and (_dated(turns.answers[0]), _dated(turns.answers[1]))
    return replace(turns, between=between, asking=_dated(turns.asking), answers=answers)


def _dated(words: str) -> str:
    return _DAY.sub(lambda found: today(found[1]), words)


class _Days:
    """Writes its form in the place of a date."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def __call__(self, form: str) -> str:
        if not _FORM.fullmatch(form):
            raise ValueError(form)  # as any template's failure: the conversation is refused
        mark = f"{_OPENS}{form}{_CLOSES}"
        self._written.add(mark)
        return mark

    def are_whole(self, turns: TurnsSpec) -> bool:
        """Tell whether the template writes dates as they come, not a part of them or in other letters."""
        words = [text for texts in turns.between.values() for text in texts.values()]
        rest = "".join((*words, turns.asking, *(turns.answers or ())))
        for mark in self._written:
            rest = rest.replace(mark, "")
        return _OPENS not in rest and _CLOSES not in rest


def _chat(turns: TurnsSpec, messages: Sequence[Message]) -> Chat:
    text, places = _written(turns, messages, asks=False)
    before, behind = turns.answers or ("", "")
    spans, end = list[Span](), 0
    for (start, stop), one in zip(places, messages, strict=True):
        if one["role"] == ANSWERING:
            asked = turns.thoughts is not None and text.startswith(turns.asking, end)  # which may begin the thoughts
            spans.append((end + len(turns.asking) if asked else start - len(before), stop + len(behind)))
        end = stop
    return Chat(text, tuple(spans))


def _written(turns: TurnsSpec, messages: Sequence[Message], *, asks: bool) -> tuple[str, list[Span]]:
    text, last, places = "", _EDGE, list[Span]()
    for number, one in enumerate(messages, start=1):
        role, content = str(one["role"]), str(one["content"])
        text += turns.between[last][role]
        if turns.thoughts is not None and role == ANSWERING:
            content = _answer(turns.thoughts, content, is_last=number == len(messages))
        content = content.strip() if role in turns.trimmed else content
        places.append((len(text), len(text) + len(content)))
        text, last = text + content, role
    return text + (turns.asking if asks else turns.between[last][_EDGE]), places


def _answer(thoughts: ThoughtsSpec, content: str, *, is_last: bool) -> str:
    """Return an answer as it is written, with its thoughts or without them."""
    thought, closed, _ = content.partition(thoughts.closes)
    if closed:
        content = content.rpartition(thoughts.closes)[2].lstrip(thoughts.strips)
    if not is_last or thoughts.around is None:
        return content
    thought = thought.rpartition(thoughts.opens)[2].strip(thoughts.strips) if closed else ""
    return thoughts.around[0] + thought + thoughts.around[1] + content.lstrip(thoughts.strips)


# --- what a template writes ---


def _read(template: Template, after: dict[str, set[str]], *, thinks: bool = False) -> TurnsSpec | None:
    """Read turns by the shortest conversation in which a role follows another; if it `thinks`, the last differs."""
    more = {SYSTEM, ANSWERING} if thinks else {SYSTEM}
    between, trimmed = dict[str, dict[str, str]](), list[str]()
    paths: dict[str, tuple[str, ...]] = {_EDGE: ()}
    reached = [_EDGE]
    for last in reached:  # which grows
        for role in (SYSTEM, USER, ANSWERING):
            path = (*paths[last], role)
            pieces = _pieces(template, path, goes_on=role in more) if role in after[last] else None
            if pieces is None:
                continue
            between.setdefault(last, {})[role] = pieces[0]
            if role in paths:
                continue
            paths[role] = path
            reached.append(role)
            alone = _pieces(template, path)
            between[role] = {} if alone is None else {_EDGE: alone[1]}
            if _pieces(template, path, goes_on=role in more, around=(" \n\t", "\n ")) == pieces:
                trimmed.append(role)
    asked = _pieces(template, paths[USER], asks=True) if USER in paths else None
    if asked is None or USER not in between.get(ANSWERING, {}):
        return None
    answers = _answers(template, paths[ANSWERING], goes_on=thinks)
    return TurnsSpec(between, asked[1], tuple(trimmed), answers)


def _thinking(template: Template, after: dict[str, set[str]], tag: str) -> TurnsSpec | None:
    """Read turns by an answer with thoughts: once before a question, once as the last."""
    turns, (first, more, thought, said) = _read(template, after, thinks=True), _MARKS
    if turns is None or USER not in turns.between[_EDGE]:
        return None
    opens, closes = f"<{tag}>", f"</{tag}>"
    messages = [_message(USER, first), _message(ANSWERING, f"{opens}\n{thought}\n{closes}\n\n {said}")]
    begins = turns.between[_EDGE][USER] + first + turns.between[USER][ANSWERING]
    hidden = _rendered(template, [*messages, _message(USER, more)], asks=False) or ""
    last = _rendered(template, messages, asks=False) or ""
    left = hidden.removeprefix(begins).partition(said)[0]
    strips = {"\n\n ": "", " ": "\n", "": "\n"}.get(left)
    if strips is None or thought in hidden or not (hidden.startswith(begins) and last.startswith(begins)):
        return None
    before, shown, behind = last.removeprefix(begins).partition(said)[0].partition(thought)
    around = (before, behind.removesuffix(left)) if shown else None
    return replace(turns, thoughts=ThoughtsSpec(opens, closes, strips, around))


def _pieces(
    template: Template,
    roles: Sequence[str],
    *,
    goes_on: bool = False,
    asks: bool = False,
    around: tuple[str, str] = ("", ""),
) -> tuple[str, str] | None:
    """Split at the last message; None where messages are refused, or not written just once.

    Where it `goes_on` a user's message follows: a template may write the system message with that alone.
    """
    marks = [*_MARKS[: len(roles) - 1], around[0] + _MARKS[len(roles) - 1] + around[1]]
    messages = [_message(role, mark) for role, mark in zip(roles, marks, strict=True)]
    more = [_message(USER, _MARKS[len(roles)])] if goes_on else []
    text = _rendered(template, [*messages, *more], asks=asks)
    used = _MARKS[: len(messages) + len(more)]
    if text is None or any(text.count(mark) != 1 for mark in used):
        return None
    before, _, behind = text.partition(used[len(roles) - 1])
    return before.rpartition(used[len(roles) - 2])[2] if len(roles) > 1 else before, behind.partition(used[-1])[0]


def _answers(template: Template, path: Sequence[str], *, goes_on: bool) -> tuple[str, str] | None:
    """Find the words that are learnt before an answer's own, and behind them."""
    said = [*path, USER] if goes_on else path
    try:
        dialogue = template.chat([_message(role, mark) for role, mark in zip(said, _MARKS, strict=False)])
    except SpryError:
        return None
    (start, stop), mark = dialogue.answers[-1], _MARKS[len(path) - 1]
    before, own, behind = dialogue.text[start:stop].partition(mark)
    return (before, behind) if own else None


# --- whether that is all ---


def _holds(template: Template, turns: TurnsSpec) -> bool:
    return all(
        _rendered(template, messages, asks=asks) == _written(turns, messages, asks=asks)[0]
        for messages in _conversations(template, turns)
        for asks in {False, messages[-1]["role"] == USER}
    )


def _learns(template: Template, turns: TurnsSpec) -> bool:
    said = (messages for messages in _conversations(template, turns) if any(m["role"] == ANSWERING for m in messages))
    return all(_learnt(template, messages) == _taught(_chat(turns, messages)) for messages in said)


def _learnt(template: Template, messages: Sequence[Message]) -> Chat | None:
    try:
        return template.chat(messages)
    except SpryError:
        return None


def _taught(conversation: Chat) -> Chat | None:
    """Return the conversation; None if one of its answers has nothing to learn."""
    return conversation if all(start < stop for start, stop in conversation.answers) else None


def _conversations(template: Template, turns: TurnsSpec) -> Iterator[list[Message]]:
    """Yield random conversations, the same for every call."""
    rng, words = random.Random(0), (*_PLAIN, *template.words)  # noqa: S311 -- no secrets
    for number in range(_TRIES):
        messages, last = list[Message](), _EDGE
        while len(messages) <= number % _LONGEST or _EDGE not in turns.between[last]:
            following = [role for role in turns.between[last] if role]
            last = rng.choice(following)
            messages.append(_message(last, "".join(rng.choices(words, k=rng.randint(1, 4)))))
        yield messages


def _rendered(template: Template, messages: Sequence[Message], *, asks: bool) -> str | None:
    try:
        return template.render(messages, asks)
    except SpryError:
        return None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
