import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from edge_client.bundle import manifest
from edge_client.bundle.manifest import (
    AdapterSpec,
    Check,
    FileSpec,
    Manifest,
    ModelSpec,
    Parameter,
    ProgramSpec,
    RuntimeSpec,
    Segment,
    Unit,
)
from edge_client.commands import cli


def program(segment: str, kind: str, directions: int) -> ProgramSpec:
    file = f"onnx/{segment}.onnx"
    return ProgramSpec(segment, kind, 8, 64, directions, file, "", (), (), 1_500_000, 2_000_000, 300_000)


PROGRAMS = tuple(
    program(segment, kind, directions)
    for segment, kind, directions in (
        ("embed", "plain", 0),
        ("block.0", "plain", 0),
        ("block.0", "enter", 1),
        ("block.1", "plain", 0),
        ("block.1", "enter", 1),
        ("block.1", "dual", 1),
        ("head", "plain", 0),
        ("head", "dual", 1),
    )
)
PATHS = ("adapter.safetensors", *(f"onnx/{segment}.onnx" for segment in ("embed", "block.0", "block.1", "head")))
MANIFEST = Manifest(
    made_by="spry 0.1.0",
    model=ModelSpec("tiny-bert", "BertForSequenceClassification", "seq-cls", ("no", "yes"), 2, 22_700_000),
    adapter=AdapterSpec("lora", {"r": 1}, "adapter.safetensors"),
    inputs=("input_ids", "attention_mask"),
    units=tuple(
        Unit(f"layer.{i}.query", (f"block.{i}",), (Parameter(f"a{i}", (1, 384)), Parameter(f"b{i}", (384, 1))))
        for i in range(2)
    ),
    head=(Parameter("classifier", (2, 384)),),
    segments=(Segment("embed", 0, 0), Segment("block.0", 0, 1), Segment("block.1", 1, 2), Segment("head", 2, 2)),
    shapes=((8, 64),),
    directions=(1,),
    tokenizer=None,
    pad_token_id=0,
    runtimes={"onnx": RuntimeSpec("int8", {"onnxruntime": "1.23"}, PROGRAMS, 22_700_000)},
    verification=(
        Check("onnx", "int8", "jvp error", 0.0123, 0.05, True),
        Check("onnx", "int8", "cosine of the gradient", 0.42, None, False),
    ),
    files=tuple(FileSpec(path, hashlib.sha256(path.encode()).hexdigest(), len(path)) for path in PATHS),
)


@pytest.fixture
def folder(tmp_path) -> Path:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "manifest.json").write_bytes(manifest.write(MANIFEST))
    return tmp_path


def test_everything_is_shown(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "tiny-bert (BertForSequenceClassification, 2 blocks, 22.7 M weights)",
        "seq-cls: no, yes",
        "lora: 2 units, 1.54 k weights; head 768",
        "all files are whole",
        "layer.1.query",
        "1x384 384x1",
        "Programs for onnx, precision int8, weights 22.7 MB (onnxruntime 1.23)",
        "block.1.dual [8x64, K=1]",
        "onnx/block.1.onnx",
        "Cuts for onnx",
        "jvp error",
        "0.0123",
        "passed",
        "FAILED",
    ):
        assert text in shown
    first, second = (
        line.split() for line in shown.splitlines() if line.strip().startswith("block") and " 8x64 " in line
    )
    assert first == ["block.0", "8x64", "1", "6", "M", "8", "MB", "300", "kB", "4.5", "M", "6", "MB", "300", "kB"]
    assert second == ["block.1", "8x64", "1", "6", "M", "8", "MB", "300", "kB", "3", "M", "4", "MB", "300", "kB"]


def test_json_holds_the_manifest_and_the_cuts(folder, capsys):
    assert cli.run(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cuts = found.pop("cuts")
    assert manifest.parse(json.dumps(found).encode()) == MANIFEST
    assert [(row["cut"]["name"], row["batch"], row["directions"]) for row in cuts["onnx"]] == [
        ("block.0", 8, 1),
        ("block.1", 8, 1),
    ]
    assert cuts["onnx"][1]["cut"]["suffix"] == {"flops": 3_000_000, "load_bytes": 4_000_000, "peak_bytes": 300_000}


def test_a_bundle_without_units_has_no_cuts(folder, capsys):
    kept = tuple(p for p in PROGRAMS if p.kind == "plain")
    bare = msgspec.structs.replace(
        MANIFEST, units=(), runtimes={"onnx": RuntimeSpec("int8", {}, kept, 1)}, verification=()
    )
    (folder / "manifest.json").write_bytes(manifest.write(bare))
    assert cli.run(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cuts"] == {"onnx": []}
    assert cli.run(["inspect", str(folder)]) == 0


def test_bad_bundles_end_in_one_line(folder, capsys):
    (folder / "onnx/head.onnx").write_text("onnx/HEAD.onnx")
    assert cli.run(["inspect", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert "head.onnx is corrupt" in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out
    assert cli.run(["inspect", str(folder), "--no-verify"]) == 0
    assert "not compared with hashes" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["inspect", str(folder / "nowhere")]) == 2


def test_help_shows_an_example(capsys):
    assert cli.run(["inspect", "--help"]) == 0
    assert "spry inspect bundle/ --json" in " ".join(capsys.readouterr().out.split())
