"""The tokenizer that a GGUF file carries, splitting texts as llama.cpp does.

llama.cpp knows two kinds that language models use: pairs of bytes, of texts that a pattern splits first (`gpt2`), and
SentencePiece's pairs by score (`llama`). A file names the pattern; its rules are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from edge_client.data.templates import Template
from edge_client.gguf.header import BadGguf, GgufHeader

T = TypeVar("T")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens."""
BYTE_PAIRS, PIECES = "gpt2", "llama"
"""Kinds of tokenizers, in llama.cpp's words."""
_SPACE = "▁"
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""transformers' names of special tokens, and GGUF's."""
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "</s>",
)  # fmt: skip
"""Tokens that llama.cpp takes whole wherever they stand; those that a file calls control tokens end an answer."""
_UNSTRIPPED = "<unk>", "<s>", "<|endoftext|>"
"""The tokens of Phi 3 after which spaces count."""


class Pattern(NamedTuple):
    """The way a text is split before pairs of bytes are joined."""

    steps: tuple[str, ...] = ()
    """Patterns, each of which splits what the one before it left; before GPT-2's own where `plain`."""
    plain: bool = False
    whole_first: bool = False
    """True if a word that is a token is taken as it is, whatever its pairs would be joined to."""
    begins: bool = False
    """A text begins with the token for that, where the file does not say."""


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREES, _ONES = rf"{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}", rf"{_WORDS}|\p{{N}}|{_OTHERS}"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_case(after: str) -> str:
    """Words that begin with capitals and go on with small letters, and what may follow them."""
    (upper, lower), before = _CASED, r"[^\r\n\p{L}\p{N}]?"
    return rf"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"


_LLAMA3 = Pattern((_THREES,), whole_first=True, begins=True)
_DIGITS = Pattern((r"\p{N}",), plain=True)
_GPT2 = Pattern(plain=True)
_QWEN2 = Pattern((_ONES,))
_GPT4O = Pattern((rf"{_by_case(_SHORTENED)}|\p{{N}}{{1,3}}|{_SLASHED}",))
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-ヿ]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
PATTERNS: Mapping[str, Pattern] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), Pattern((_THREES,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _QWEN2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "a.x-4.0", "mellum"), _GPT2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": Pattern((rf"{_by_case('')}|\p{{N}}|{_SLASHED}",), whole_first=True, begins=True),
    "deepseek-v3": Pattern(_DEEPSEEK),
    "falcon": Pattern((r"[\p{P}\$\+<=>\^~\|`]+",), plain=True),
    "default": Pattern((r"[\p{P}\$\+<=>\^~\|]+",), plain=True),
}
"""The patterns, by the name that a file gives as `tokenizer.ggml.pre`."""
_LATE = {"falcon": ("[0-9][0-9][0-9]",), "default": (r"\p{N}+", "[0-9][0-9][0-9]")}
"""The patterns that split the pieces that GPT-2's pattern leaves."""
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def name_of(pattern: Pattern) -> str | None:
    """Return the first of a pattern's names, whether or not a text begins with a token; None if llama.cpp has none."""
    known = (name for name, one in PATTERNS.items() if name not in _LATE and one[:3] == pattern[:3])
    return next(known, None)


class GgufWords:
    """The words of a file.

    Args:
        header: of the file.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self.model = header.settings.get("tokenizer.ggml.model")
        if self.model not in (BYTE_PAIRS, PIECES) or not self._list("tokens", str):
            said = (
                "it holds no tokenizer"
                if self.model in (None, "none", "no_vocab")
                else f"its tokenizer is a {self.model}"
            )
            raise BadGguf(
                f"{header.path}: {said}, and {BYTE_PAIRS} and {PIECES} are known; give a model that has one of them"
            )
        self.words = [word or f"[EMPTY_{number}]" for number, word in enumerate(self._list("tokens", str))]
        self.kinds = self._list("token_type", int) or [NORMAL] * len(self.words)
        self.numbers = {word: number for number, word in enumerate(self.words)}
        if len(self.numbers) != len(self.words) or len(self.kinds) != len(self.words):
            raise BadGguf(
                f"{header.path} is damaged: it has words twice, or without their kinds; take another copy of it"
            )

    def _list(self, key: str, kind: type[T]) -> list[T]:
        """Return one of the tokenizer's lists; empty where the file has none."""
        found: object = self._header.settings.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(found, list) or not all(isinstance(one, kind) for one in cast("list[object]", found)):
            raise BadGguf(
                f"{self._header.path} is damaged: its tokenizer.ggml.{key} is no list of {kind.__name__}; "
                "take another copy of it"
            )
        return cast("list[T]", found)

    @cached_property
    def special(self) -> dict[str, int]:
        """Numbers of special tokens, by transformers' names."""
        defaults = {"bos_token": 1, "eos_token": 2, "unk_token": 0} if self.model == PIECES else {}
        found = dict(defaults)
        for name, key in SPECIAL.items():
            number = self._header.settings.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(number, int):
                found[name] = number
        return {name: number for name, number in found.items() if 0 <= number < len(self.words)}

    @property
    def ends(self) -> list[int]:
        """Tokens by which an answer ends, the file's own first."""
        settings = self._header.settings
        told = [settings.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
        known = [self.numbers[word] for word in _ENDS if word in self.numbers and self._is_control(self.numbers[word])]
        numbers = [number for number in (self.special.get("eos_token"), *told, *known) if isinstance(number, int)]
        return [number for number in dict.fromkeys(numbers) if number < len(self.words)]

    def _is_control(self, number: int) -> bool:
        return self.kinds[number] == CONTROL

    @property
    def template(self) -> Template:
        """The chat template, with the special tokens that it may write."""
        source = self._header.settings.get("tokenizer.chat_template")
        return Template(
            source if isinstance(source, str) else "", {name: self.words[at] for name, at in self.special.items()}
        )

    @property
    def pattern(self) -> tuple[str, Pattern]:
        name = self._header.settings.get("tokenizer.ggml.pre") or "default"
        if name not in PATTERNS:
            raise BadGguf(
                f"{self._header.path} splits texts by the pattern {name!r}, which is not known here; "
                f"known are {', '.join(sorted(PATTERNS))}"
            )
        return name, PATTERNS[name]

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer."""
        tokenizer = self._of_pieces() if self.model == PIECES else self._of_bytes()
        strips = "phi-3" in str(self._header.settings.get("general.name", "")).lower()  # as llama.cpp tells it
        kinds = [
            USER_DEFINED if word in _ENDS and kind == NORMAL else kind
            for word, kind in zip(self.words, self.kinds, strict=True)
        ]
        for kind, special in ((CONTROL, True), (UNKNOWN, True), (USER_DEFINED, False)):
            words = [word for word, of in zip(self.words, kinds, strict=True) if of == kind]
            added = [
                AddedToken(word, special=special, normalized=False, rstrip=strips and word not in _UNSTRIPPED)
                for word in words
            ]
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
        self._put_around(tokenizer)
        return tokenizer

    def _of_bytes(self) -> Tokenizer:
        name, pattern = self.pattern
        merges = [_pair(merge) for merge in self._list("merges", str)]
        known = [(left, right) for left, right in merges if {left, right, left + right} <= self.numbers.keys()]
        tokenizer = Tokenizer(BPE(vocab=self.numbers, merges=known, ignore_merges=pattern.whole_first))
        steps = [_split(step) for step in pattern.steps]
        if name in _LATE:
            steps += [_split(step) for step in (_GPT2_PATTERN, *_LATE[name])]
        plain = pattern.plain and name not in _LATE
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _of_pieces(self) -> Tokenizer:
        prefix = self._header.settings.get("tokenizer.ggml.add_space_prefix", True)
        unknown = self.words[self.special["unk_token"]] if "unk_token" in self.special else None
        tokenizer = Tokenizer(
            BPE(vocab=self.numbers, merges=self._pairs_by_score(), unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        space = normalizers.Replace(" ", _SPACE)
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), space]) if prefix else space
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
        return tokenizer

    def _pairs_by_score(self) -> list[tuple[str, str]]:
        """Return all pairs of pieces that make a piece, the best piece's first."""
        scores = self._list("scores", float)
        if len(scores) != len(self.words):
            raise BadGguf(f"{self._header.path} is damaged: its pieces lack their scores; take another copy of it")
        joined = {
            word: scores[number] for number, word in enumerate(self.words)
            if len(word) > 1 and self.kinds[number] in (NORMAL, USER_DEFINED, UNUSED)
        }  # fmt: skip
        return [
            (word[:at], word[at:]) for word in sorted(joined, key=joined.__getitem__, reverse=True)
            for at in range(1, len(word)) if word[:at] in self.numbers and word[at:] in self.numbers
        ]  # fmt: skip

    def _put_around(self, tokenizer: Tokenizer) -> None:
        """Make the tokenizer put the tokens that begin and end every text around it."""
        settings = self._header.settings
        begins = settings.get("tokenizer.ggml.add_bos_token", self.model == PIECES or self.pattern[1].begins)
        names = ("bos_token" if begins else "", "eos_token" if settings.get("tokenizer.ggml.add_eos_token") else "")
        before, after = ([self.words[self.special[name]]] if name in self.special else [] for name in names)
        if not before and not after:
            return
        single, pair = ([*before, "$A", *after], [*before, "$B:1", *after])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, *(f"{one}:1" if one in (*before, *after) else one for one in pair)],
            special_tokens=[(word, self.numbers[word]) for word in dict.fromkeys((*before, *after))],
        )


def _pair(merge: str) -> tuple[str, str]:
    """Return the two words of a pair; the first may be a space itself."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")
