"""The Android library's tokenizers beside the `tokenizers` library: the same tokens, at the same places."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from unicodedata import category, ucd_3_2_0

import pytest
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from server.demo.intents import slice_of
from tests import android

ROOT = Path(__file__).parents[1]
CORE = ROOT / "android_demo/core/src"
JSON = Path("/usr/share/java/com.android.json.jar")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EDGES: list[str] = json.loads((ROOT / "tests/vectors/edge_texts.json").read_text(encoding="utf-8"))
"""What may trip a tokenizer that was written again: spaces, marks, scripts, signs and special tokens."""


def compiled_core(folder: Path) -> str:
    """A class path with the library's tokenizers and the command that runs them."""
    sources = [str(path) for path in (CORE / "test/java/dev/spry/core/text").glob("TokenizeMain.java")]
    command = ["javac", "--release", "8", "-Xlint:-options", "-encoding", "UTF-8", "-cp", str(JSON), "-d", str(folder)]
    subprocess.run([*command, "-sourcepath", str(CORE / "main/java"), *sources], check=True, timeout=300)
    return f"{folder}:{JSON}"


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: apt install openjdk-17-jdk-headless")
    if not JSON.exists():
        pytest.skip("needs Android's JSON for Java: apt install libandroid-json-java")
    path = compiled_core(tmp_path_factory.mktemp("classes"))
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"

    def cut(tokenizer: Tokenizer, rows: list[tuple[str, str | None, int]]) -> list[dict[str, list[int]]]:
        tokenizer.save(str(file))
        command = ["java", "-Xmx512m", "-cp", path, "dev.spry.core.text.TokenizeMain", str(file)]
        given = "".join(json.dumps(row) + "\n" for row in rows)
        done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return android.said(done.stdout)

    return cut


def expected(encoding: Encoding) -> dict[str, list[int]]:
    return {
        "ids": encoding.ids,
        "types": encoding.type_ids,
        "texts": [-1 if text is None else text for text in encoding.sequence_ids],
        "starts": [start for start, _ in encoding.offsets],
        "ends": [end for _, end in encoding.offsets],
    }


def sentences() -> list[str]:
    """Return what households say, and this project's own prose: more than two thousand sentences."""
    said = [row["text"] for number in range(8) for row in slice_of(number, 100)]
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    written = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return said + written[:1800]


def rows(texts: list[str]) -> list[tuple[str, str | None, int]]:
    """Every text alone and whole, cut short, and in a pair."""
    rng = random.Random("rows")
    short = [(text, None, rng.choice((4, 8, 24))) for text in texts[::3]]
    pairs = [(text, rng.choice(texts), rng.choice((5, 16, 64))) for text in texts[::3]]
    return [*((text, None, 4096) for text in texts), *short, *pairs]


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(sentences(), trainers.WordPieceTrainer(vocab_size=1500, special_tokens=SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def cased_bert() -> Tokenizer:
    tokenizer = bert()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def of_bytes(cutter: pre_tokenizers.PreTokenizer, **model: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = cutter
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = of_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta() -> Tokenizer:
    tokenizer = of_bytes(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("York", single_word=True, rstrip=True)])
    return tokenizer


def llama() -> Tokenizer:
    """As Llama 3 and Qwen 2 have it: a pattern of their own, words that need no merges, composed characters."""
    words = pre_tokenizers.Split(Regex(LLAMA), "isolated")
    tokenizer = of_bytes(pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)]))
    described = json.loads(tokenizer.to_str())
    described["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.normalizer = normalizers.NFC()
    begin = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), begin])
    return tokenizer


def digits() -> Tokenizer:
    """As SmolLM has it."""
    cutter = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    tokenizer = of_bytes(cutter)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


@pytest.mark.parametrize("make", [bert, cased_bert, gpt2, roberta, llama, digits])
def test_the_same_tokens_as_the_library_gives(cut, make):
    tokenizer, given = make(), rows([*EDGES, *sentences()])
    found = cut(tokenizer, given)
    assert len(found) == len(given)
    for (text, pair, length), tokens in zip(given, found, strict=True):
        tokenizer.enable_truncation(length, strategy="longest_first")
        assert tokens == expected(tokenizer.encode(text, pair)), (text, pair, length)


@pytest.mark.parametrize("make", [bert, digits])
def test_every_character_of_the_basic_plane(cut, make):
    """Those that Unicode has named or changed since 2002 may differ: libraries are of different versions of it."""
    tokenizer = make()
    known = [one for one in map(chr, range(1, 0xD800)) if ucd_3_2_0.category(one) == category(one) != "Cn"]
    given = [("a".join(["", *known[at : at + 16], ""]), None, 4096) for at in range(0, len(known), 16)]
    for (text, *_), tokens in zip(given, cut(tokenizer, given), strict=True):
        assert tokens == expected(tokenizer.encode(text)), text
