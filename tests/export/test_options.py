"""Every option that cannot work is refused before any work, with what was expected and what came."""

import dataclasses
import os
from pathlib import Path

import pytest

from edge_client.bundle.manifest import PRECISIONS, TASKS
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.errors import SpryError
from edge_client.runtimes.runtime import RUNTIMES
from export.adapt.adapter import ADAPTERS
from export.errors import ExportError
from export.options import ExportOptions, parse_labels, parse_numbers
from export.tasks.registry import MODEL_TASKS
from tests.adapters import everywhere


def test_the_defaults_are_accepted(tmp_path):
    ExportOptions("somewhere", tmp_path / "out").check()


@pytest.mark.parametrize(
    ("task", "adapter", "blocks"),
    [("causal-lm", AdapterOptions(), 0), ("causal-lm", AdapterOptions(last_blocks=2), 2),
     ("seq-cls", AdapterOptions(), 2), ("qa", AdapterOptions(), 2), ("seq-cls", AdapterOptions(last_blocks=0), 0)],
)  # fmt: skip
def test_without_a_task_layer_all_blocks_are_adapted(task, adapter, blocks, tmp_path):
    """Of five; 0 are all."""
    assert ExportOptions("somewhere", tmp_path, task, adapter=adapter).adapter.blocks_of(5) == blocks


def test_names_that_are_offered_without_torch_are_those_that_exist():
    assert set(TASKS) == MODEL_TASKS.keys()


def adapter(**changes):
    return {"adapter": dataclasses.replace(everywhere(), **changes)}


REFUSED = [
    ({"task": "seq-clas"}, "unknown task 'seq-clas'; expected one of seq-cls, qa, "),
    ({"runtimes": ()}, "no target given; expected some of .*onnx"),
    ({"runtimes": ("onnx", "tflite")}, "unknown target 'tflite'; expected one of .*onnx"),
    ({"runtimes": ("onnx", "onnx")}, "each target may be named once, got onnx,onnx"),
    ({"precision": "int2"}, "unknown quantization 'int2'; expected one of none, int8, int4"),
    ({"processor": "sse"}, "unknown processor 'sse'; expected one of auto, avx2, vnni, amx, arm-dotprod"),
    (adapter(method="dora"), f"unknown adapter 'dora'; expected one of {', '.join(ADAPTERS)}"),
    (adapter(rank=-3), "rank must be at least 1, got -3"),
    (adapter(alpha=float("nan")), "alpha must be a finite number, got nan"),
    ({"batches": (8, 0)}, "batch must be at least 1, got 8,0"),
    ({"batches": ()}, "batch must be at least 1, got nothing"),
    ({"lengths": (64, 1)}, "a sequence needs at least 2 tokens, got --seq 64,1"),
    ({"lengths": ()}, "a sequence needs at least 2 tokens, got --seq nothing"),
    ({"directions": (0,)}, "directions must be at least 1, got 0"),
    ({"generate": 32}, "--generate is for the task causal-lm, got seq-cls"),
    ({"generate": 1, "task": "causal-lm"}, "--generate takes 2 tokens or more, or 0 for no generation, got 1"),
    ({"cuts": 0}, "cuts must be at least 1, got 0"),
    ({"labels": ("only",)}, "a classifier needs at least 2 labels, got only"),
    ({"labels": ()}, "a classifier needs at least 2 labels, got nothing"),
    ({"labels": ("a", "b", "a")}, "labels must differ from each other, got a,b,a"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(tmp_path, changes, message):
    with pytest.raises(ExportError, match=message) as caught:
        ExportOptions(**{"source": "somewhere", "out": tmp_path / "out"} | changes).check()
    assert isinstance(caught.value, SpryError)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_earlier_versions_is_answered_by_what_to_take(tmp_path):
    with pytest.raises(SpryError, match="--peft pairs is gone: use --peft bottleneck, or lora"):
        ExportOptions("somewhere", tmp_path / "out", **adapter(method="pairs")).check()


@pytest.mark.parametrize("task", ["qa", "causal-lm"])
def test_labels_are_for_classifiers(tmp_path, task):
    ExportOptions("somewhere", tmp_path / "out", task=task, labels=()).check()


# --- where the bundle goes -------------------------------------------------------------------------------------------


def test_a_bundle_is_replaced_only_when_asked(tmp_path):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "manifest.json").write_text("{}")
    with pytest.raises(ExportError, match=r"bundle exists; choose another --out or pass --overwrite"):
        ExportOptions("somewhere", out).check()
    ExportOptions("somewhere", out, overwrite=True).check()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_but_a_bundle_is_ever_replaced(tmp_path, kind):
    out = tmp_path / "home"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("precious")
    else:
        out.write_text("precious")
    with pytest.raises(ExportError, match="home is not a bundle, so --overwrite will not replace it"):
        ExportOptions("somewhere", out, overwrite=True).check()


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="file is a file, so no bundle can be written below it"):
        ExportOptions("somewhere", tmp_path / "file" / "deep" / "out").check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="cannot be written to; choose another --out"):
        ExportOptions("somewhere", tmp_path / "out").check()


def test_a_relative_place_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ExportOptions("somewhere", Path("out")).check()
    with pytest.raises(ExportError, match="exists"):
        ExportOptions("somewhere", Path()).check()


# --- what the command line gives -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("3", ("0", "1", "2")),
        (" 2 ", ("0", "1")),
        ("0", ()),
        ("no,yes", ("no", "yes")),
        (" no , yes, ", ("no", "yes")),
        ("only", ("only",)),
        ("²,1", ("²", "1")),
        ("²", ("²",)),
        ("", ()),
    ],
)
def test_labels(text, labels):
    assert parse_labels(text) == labels


def test_numbers():
    assert parse_numbers("--batch", "8") == (8,)
    assert parse_numbers("--batch", "8, 1,8") == (8, 1)


@pytest.mark.parametrize("text", ["", "8,", "eight", "1.5", "8;1"])
def test_numbers_that_are_none(text):
    with pytest.raises(ExportError, match=f"--seq takes whole numbers between commas, got '{text}'"):
        parse_numbers("--seq", text)


def test_shapes_go_through_the_batches_of_each_length(tmp_path):
    options = ExportOptions("somewhere", tmp_path / "out", batches=(8, 1), lengths=(64, 128))
    assert options.shapes == ((8, 64), (1, 64), (8, 128), (1, 128))


def test_every_precision_and_runtime_has_a_place():
    assert set(PRECISIONS) == {"none", "int8", "int4"}
    assert "onnx" in RUNTIMES
