"""A tokenizer as GGUF files have it: byte pairs, of texts that llama.cpp splits as the tokenizer's pattern does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from edge_client.data.templates import Template
from edge_client.gguf.tokens import Pattern, name_of
from server.errors import NotWhole

if TYPE_CHECKING:
    from gguf import GGUFWriter


_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def add_words(writer: GGUFWriter, folder: Path, count: int) -> None:
    """Write the tokenizer of a model's folder; the model has `count` rows of words."""
    import gguf

    if not (folder / "tokenizer.json").is_file():
        raise NotWhole("it has no tokenizer.json")
    told = json.loads((folder / "tokenizer.json").read_text())
    pattern, tokenizer = _pattern(told), Tokenizer.from_str(json.dumps(told))
    if tokenizer.get_vocab_size() > count:
        raise NotWhole(f"its tokenizer has {tokenizer.get_vocab_size()} tokens, and the model {count}")
    added = {one["id"]: one for one in told["added_tokens"]}
    names = {number: word for word, number in tokenizer.get_vocab().items()}
    words, kinds = list[str](), list[int]()
    for number in range(count):
        words.append(names.get(number, f"[PAD{number}]"))
        if number not in names:
            kinds.append(gguf.TokenType.UNUSED)
        elif number in added:
            kinds.append(gguf.TokenType.CONTROL if added[number]["special"] else gguf.TokenType.USER_DEFINED)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pattern)
    writer.add_token_list(words)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in told["model"]["merges"]])
    _add_special(writer, Template.beside(folder), tokenizer)


def _pattern(told: Mapping[str, Any]) -> str:
    """llama.cpp's name of what splits texts as this tokenizer does; nothing that it would leave out may be in it."""
    model, steps = told["model"], _steps(told.get("pre_tokenizer"))
    patterns = [_regex(step) for step in steps[:-1]]
    name = None
    if steps and steps[-1]["type"] == "ByteLevel" and not steps[-1]["add_prefix_space"] and None not in patterns:
        known = tuple(pattern for pattern in patterns if pattern is not None)
        name = name_of(Pattern(known, plain=steps[-1]["use_regex"], whole_first=bool(model.get("ignore_merges"))))
    bytewise = model.get("type") == "BPE" and not model.get("byte_fallback") and not model.get("dropout")
    if not bytewise or name is None:
        raise NotWhole("its tokenizer splits texts in a way that is not known to be llama.cpp's")
    if _steps(told.get("normalizer"), "normalizers") not in ([], [{"type": "NFC"}]):
        raise NotWhole("its tokenizer changes texts before it splits them")
    return name


_DIGIT = r"\p{N}"


def _regex(step: Mapping[str, Any]) -> str | None:
    """Return the pattern whose matches a step keeps as pieces of their own; None where it does anything else."""
    match step:
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return pattern
        case {"type": "Digits", "individual_digits": True}:
            return _DIGIT
        case _:
            return None


def _steps(part: Mapping[str, Any] | None, many: str = "pretokenizers") -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part[many]) if part["type"] == "Sequence" else [part]


def _add_special(writer: GGUFWriter, template: Template, tokenizer: Tokenizer) -> None:
    known = {name: tokenizer.token_to_id(template.tokens[name]) for name in _SPECIAL if name in template.tokens}
    around = tokenizer.encode("").ids
    if around not in ([], [known.get("bos_token")]):
        raise NotWhole("its tokenizer adds more tokens to a text than the one that begins it")
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
        ("unk_token", writer.add_unk_token_id),
    ):
        if (number := known.get(name)) is not None:
            add(number)
    writer.add_add_bos_token(bool(around))
    if template.source:
        writer.add_chat_template(template.source)
