"""A tokenizer as GGUF files have it: byte pairs, of texts that llama.cpp splits as the tokenizer's pattern does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Tokenizer

from edge_client.data.templates import Template
from server.errors import NotWhole

if TYPE_CHECKING:
    from gguf import GGUFWriter


class Split(NamedTuple):
    """How a text is split before pairs are joined."""

    name: str
    """llama.cpp's."""
    whole_first: bool
    """A word that is a token is taken as it is, whatever its pairs would come to."""


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    rf"{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}": Split("llama-bpe", whole_first=True),
    rf"{_WORDS}|\p{{N}}|{_OTHERS}": Split("qwen2", whole_first=False),
}
_PLAIN = Split("gpt-2", whole_first=False)
"""What a byte-level tokenizer does that names no pattern."""
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def add_words(writer: GGUFWriter, folder: Path, count: int) -> None:
    """The tokenizer in a model's folder; the model has so many rows of words."""
    import gguf

    if not (folder / "tokenizer.json").is_file():
        raise NotWhole("it has no tokenizer.json")
    told = json.loads((folder / "tokenizer.json").read_text())
    split, tokenizer = _split(told), Tokenizer.from_str(json.dumps(told))
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
    writer.add_tokenizer_pre(split.name)
    writer.add_token_list(words)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in told["model"]["merges"]])
    _add_special(writer, Template.beside(folder), tokenizer)


def _split(told: Mapping[str, Any]) -> Split:
    """What llama.cpp does as this tokenizer does; nothing that it would leave out may be in it."""
    model, steps = told["model"], _steps(told.get("pre_tokenizer"))
    split = None
    match steps:
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            split = _PLAIN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ]:
            split = _SPLITS.get(pattern)
        case _:
            pass
    bytewise = model.get("type") == "BPE" and not model.get("byte_fallback") and not model.get("dropout")
    if not bytewise or split is None or bool(model.get("ignore_merges")) != split.whole_first:
        raise NotWhole("its tokenizer splits texts in a way that is not known to be llama.cpp's")
    if _steps(told.get("normalizer"), "normalizers") not in ([], [{"type": "NFC"}]):
        raise NotWhole("its tokenizer changes texts before it splits them")
    return split


def _steps(part: Mapping[str, Any] | None, many: str = "pretokenizers") -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part[many]) if part["type"] == "Sequence" else [part]


def _add_special(writer: GGUFWriter, template: Template, tokenizer: Tokenizer) -> None:
    known = {name: tokenizer.token_to_id(template.tokens[name]) for name in _SPECIAL if name in template.tokens}
    around = tokenizer.encode("").ids
    if around not in ([], [known.get("bos_token")]):
        raise NotWhole("its tokenizer puts other tokens around a text than the one that begins it")
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
