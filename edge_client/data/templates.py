"""Conversations as one text, by the chat template that came with a model's tokenizer.

A template is a program of the bundle, in Jinja's language: it runs in a sandbox, with what transformers gives templates
and nothing else. What of the text are answers is marked by the template itself (`generation` blocks) or found by
rendering again: up to where an answer is asked for, and with a mark in the answer's place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from edge_client.errors import BundleError, DataError, RuntimeMissing

if TYPE_CHECKING:
    import jinja2

    from edge_client.bundle.folder import Bundle

    from .sandbox import Environment

Message = Mapping[str, object]
"""A message, with at least its `role` and its `content`."""
Span = tuple[int, int]
"""The first of a text's characters, and the one behind the last."""

ANSWERING = "assistant"
"""The role whose turns are learnt."""
LONGEST_TEXT = 1 << 22
"""Characters, which no model reads: where a template goes on for ever it is stopped."""
_HARMLESS = "and look at the template: it is the tokenizer's chat_template"


class Chat(NamedTuple):
    """A conversation as one text."""

    text: str
    answers: tuple[Span, ...]


class Template:
    """A tokenizer's chat template, and the special tokens that it may write.

    Args:
        source: of the template; empty where the tokenizer has none.
        tokens: such as `bos_token` and `eos_token`.
        now: what a template takes for today's date, in a form of its own.
    """

    def __init__(
        self, source: str = "", tokens: Mapping[str, str] | None = None, now: Callable[[str], str] | None = None
    ) -> None:
        self.source = source
        self._now = now or today
        self.tokens = dict(tokens or {})

    @classmethod
    def of(cls, bundle: Bundle) -> Template:
        """Read a bundle's template; an empty one where the bundle has none."""
        if bundle.manifest.chat_template is None:
            return cls()
        path = bundle.folder / bundle.manifest.chat_template
        try:
            fields: dict[str, str] = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as error:
            raise BundleError(f"{path} cannot be read as a chat template ({error}); copy the bundle again") from None
        return cls(fields.pop("chat_template", ""), fields)

    @classmethod
    def beside(cls, folder: Path) -> Template:
        """Read the template in a model's folder, as Hugging Face writes it; an empty one where there is none."""
        config, alone = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            fields: dict[str, Any] = msgspec.json.decode(config.read_bytes()) if config.is_file() else {}
            source: Any = alone.read_text() if alone.is_file() else fields.get("chat_template")
        except (OSError, ValueError) as error:
            raise BundleError(f"{config} cannot be read as a chat template ({error}); copy the bundle again") from None
        if isinstance(source, list):
            named = cast("list[dict[str, str]]", source)
            source = next((one["template"] for one in named if one.get("name") == "default"), "")
        tokens = {name: _token(value) for name, value in fields.items() if name.endswith("_token") and _token(value)}
        return cls(source or "", tokens)

    def written(self) -> bytes:
        """Return a part of what Hugging Face calls `tokenizer_config.json`."""
        fields = dict(sorted(self.tokens.items())) | ({"chat_template": self.source} if self.source else {})
        return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"

    @property
    def end(self) -> str:
        """Give the token that ends a complete text; empty where the tokenizer has none."""
        return self.tokens.get("eos_token", "")

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The texts that the template writes or looks for."""
        from jinja2 import nodes

        parsed = self._compiled.environment.parse(self.source)
        constants: set[Any] = {one.value for one in parsed.find_all(nodes.Const)}
        plain = {one.data for one in parsed.find_all(nodes.TemplateData)}
        return tuple(sorted({one for one in constants if isinstance(one, str)} | plain))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Render the conversation's text; with what asks for the next answer at its end, if it is to be generated.

        It has all special tokens in it: the tokenizer is to add none.
        """
        return self._rendered(messages, add_generation_prompt, mark="")

    def chat(self, messages: Sequence[Message]) -> Chat:
        """Return the conversation's text, and which parts of it are answers."""
        turns = [i for i, message in enumerate(messages) if message.get("role") == ANSWERING]
        if not turns:
            raise DataError(f"has no message of the role {ANSWERING!r}: there is nothing to learn; add the answer")
        if self._marks_answers:
            return self._marked(messages)
        text = self.render(messages)
        return Chat(text, tuple(self._span(text, messages, turn) for turn in turns))

    # --- answers that the template marks ---

    @property
    def _marks_answers(self) -> bool:
        return "endgeneration" in self.source

    def _marked(self, messages: Sequence[Message]) -> Chat:
        """Render with a mark before and behind each answer."""
        mark = _mark()
        parts = self._rendered(messages, False, mark).split(mark)
        spans, start = list[Span](), 0
        for number, part in enumerate(parts):
            if number % 2 and part:
                spans.append((start, start + len(part)))
            start += len(part)
        if not spans or len(parts) % 2 == 0:
            raise DataError(f"the chat template marks no answer of the conversation: correct the roles, {_HARMLESS}")
        return Chat("".join(parts), tuple(spans))

    # --- answers that are found ---

    def _span(self, text: str, messages: Sequence[Message], turn: int) -> Span:
        """Find an answer's span: from where it is asked for to where it ends, with the token that ends it."""
        mark = _mark()
        held = [*messages[:turn], {**messages[turn], "content": mark}]
        before, behind = _around(mark, self._tried([*held, *messages[turn + 1 :]]))
        asked = self._tried(messages[:turn], add_generation_prompt=True)
        start = next((len(one) for one in (asked, before) if one and text.startswith(one)), None)
        stop = self._stop(text, messages, turn, behind, _around(mark, self._tried(held))[1])
        if start is None or stop is None or stop <= start:
            raise DataError(
                f"the chat template writes message {turn + 1} in another way when the conversation goes on, so where "
                "its answer stands is not known: end the conversation there, or give prompt and completion"
            )
        return start, stop

    def _stop(self, text: str, messages: Sequence[Message], turn: int, behind: str, tail: str) -> int | None:
        """Return the position after the text that closes the answer, the line's end left out."""
        closing = tail.rstrip() or tail
        if behind.startswith(closing) and text.endswith(behind) and closing:
            return len(text) - len(behind) + len(closing)
        up_to = self._tried(messages[: turn + 1])
        return len(up_to.rstrip()) if up_to and text.startswith(up_to) else None

    def _tried(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Render messages; return an empty text where the template refuses a part of a conversation."""
        try:
            return self.render(messages, add_generation_prompt)
        except DataError:
            return ""

    # --- the sandbox ---

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if not self.source:
            raise DataError(
                "the bundle's tokenizer has no chat template, so messages cannot be read: give rows with prompt and "
                "completion, or export the model with a tokenizer that has one"
            )
        try:
            from jinja2 import TemplateError

            from .sandbox import Environment, TooMuch
        except ImportError as error:
            raise RuntimeMissing("reading messages", "chat", str(error)) from None
        try:
            return Environment().from_string(self.source)
        except (TemplateError, RecursionError, TooMuch) as error:
            raise BundleError(f"the chat template cannot be read ({_line(error)}); export the model again") from None

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool, mark: str) -> str:
        template = self._compiled
        given: dict[str, Any] = {
            "tools": None,
            "documents": None,
            "strftime_now": self._now,
            **self.tokens,
            "_mark": mark,
        }
        plain = [{**message} for message in messages]
        from .sandbox import TooMuch

        cast("Environment", template.environment).budget.begin()
        try:
            blocks = template.generate(messages=plain, add_generation_prompt=add_generation_prompt, **given)
            return "".join(_bounded(blocks))
        except TooMuch as error:
            spent = f"the chat template {error}, which no template needs"
            raise DataError(f"{spent}: shorten the row, or look at the template of the bundle") from None
        except _TooLong:
            what = f"the chat template writes more than {LONGEST_TEXT:,} characters"
            raise DataError(f"{what}: shorten the row") from None
        except Exception as error:  # noqa: BLE001 -- a template can raise whatever Python's operators raise
            why = f"the chat template refuses the conversation: {_line(error)}"
            raise DataError(f"{why}; correct the roles and their order, {_HARMLESS}") from None


def today(form: str) -> str:
    """Format today's date by the clock of the reader, as everywhere."""
    return datetime.now().astimezone().strftime(form)


class _TooLong(Exception):
    pass


def _bounded(blocks: Iterator[str]) -> Iterator[str]:
    count = 0
    for block in blocks:
        count += len(block)
        if count > LONGEST_TEXT:
            raise _TooLong
        yield block


def _mark() -> str:
    """Make a text that no row holds, and that no filter for white space, quotes or cases changes."""
    return str(secrets.randbits(128) | 1 << 127)


def _around(mark: str, text: str) -> tuple[str, str]:
    """Split a text at a mark; nothing where it is not there exactly once."""
    before, found, behind = text.partition(mark)
    return (before, behind) if found and mark not in behind else ("", "")


def _token(value: Any) -> str:
    """Return a special token's text, for which a tokenizer's configuration may have more fields."""
    content: Any = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
