import json

import msgspec
import pytest

from edge_client import BundleError
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
    TensorSpec,
    Unit,
)

PROGRAM = ProgramSpec(
    segment="head",
    kind="dual",
    batch=2,
    length=4,
    directions=3,
    file="onnx/head.onnx",
    method="",
    inputs=(TensorSpec("hidden", "float32", (2, 4, 8)),),
    outputs=(TensorSpec("loss", "float32", (2,)),),
    flops=100,
    load_bytes=10,
    peak_bytes=20,
)
MANIFEST = Manifest(
    made_by="spry 0.1.0",
    model=ModelSpec("tiny", "BertForSequenceClassification", "seq-cls", ("no", "yes"), 1, 1000),
    adapter=AdapterSpec("lora", {"r": 1, "target_modules": {"value", "query"}}, "adapter.safetensors"),
    inputs=("input_ids", "attention_mask"),
    units=(Unit("layer.0.query", ("block.0",), (Parameter("a", (1, 8)), Parameter("b", (8, 1)))),),
    head=(Parameter("classifier.weight", (2, 8)),),
    segments=(Segment("embed", 0, 0), Segment("block.0", 0, 1), Segment("head", 1, 1)),
    shapes=((2, 4),),
    directions=(1, 3),
    tokenizer="tokenizer.json",
    pad_token_id=0,
    runtimes={"onnx": RuntimeSpec("int8", {"onnxruntime": "1.23"}, (PROGRAM,), 1000, files=("onnx/weights.bin",))},
    verification=(Check("onnx", "int8", "jvp error", 0.01, 0.05, True),),
    files=tuple(
        FileSpec(path, "0" * 64, 3)
        for path in ("adapter.safetensors", "onnx/head.onnx", "onnx/weights.bin", "tokenizer.json")
    ),
)


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(manifest.write(MANIFEST)), **fields}).encode()


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest.write(MANIFEST))
    found = manifest.read(path)
    assert found.units == MANIFEST.units
    assert found.runtimes == MANIFEST.runtimes
    assert found.adapter.config["target_modules"] == ["query", "value"]
    assert manifest.write(found) == path.read_bytes()


def test_order_of_dictionaries_changes_nothing():
    turned = msgspec.structs.replace(
        MANIFEST, adapter=AdapterSpec("lora", {"target_modules": ["query", "value"], "r": 1}, "adapter.safetensors")
    )
    assert manifest.write(turned) == manifest.write(MANIFEST)


def test_fields_from_a_later_minor_version_are_ignored():
    assert manifest.parse(changed(colour="blue")).units == MANIFEST.units


def test_a_unit_of_an_older_manifest_moves_along_its_weights():
    (unit,) = manifest.parse(manifest.write(MANIFEST)).units
    assert (unit.tangents, unit.tangents_of(8)) == ("weights", unit.parameters)


def test_directions_at_a_bottleneck_are_of_each_token():
    unit = Unit("layer.0.query", ("block.0",), (Parameter("a", (2, 8)),), "bottleneck")
    assert unit.tangents_of(5) == (Parameter("a", (5, 2)),)
    assert msgspec.structs.replace(unit, token=0).tangents_of(5) == (Parameter("a", (1, 2)),)
    assert unit.size == 16


def test_sizes():
    assert MANIFEST.units[0].size == 16
    assert PROGRAM.name == "head.dual [2x4, K=3]"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(schema=3), r"has schema 3, but this version of spry reads up to 2: upgrade"),
        (changed(schema=0), r"has schema 0; expected 1 to 2"),
        (changed(schema="1"), r"Expected `int`, got `str`"),
        (b'{"made_by": "x"}', r"missing required field `schema`"),
        (b'{"schema": 1}', r"missing required field `made_by`"),
        (changed(pad_token_id="0"), r"Expected `int`, got `str` - at `\$.pad_token_id`"),
        (changed(shapes=[[1]]), r"at `\$.shapes\[0\]`"),
        (manifest.write(MANIFEST)[:-9], r"is damaged"),
        (b"\xff\xfe", r"is damaged"),
        (b"", r"is damaged"),
        (changed(segments=[]), r"segments must go from embed to head"),
        (changed(tokenizer="other.json"), r"the tokenizer names 'other.json', which is not among the manifest's files"),
        (changed(units=[{"name": "u", "segments": ["block.9"], "parameters": []}]), r"unit u names 'block.9'"),
    ],
)
def test_a_bad_manifest_is_one_clear_line(data, message):
    with pytest.raises(BundleError, match=message) as caught:
        manifest.parse(data, "bundle/manifest.json")
    assert str(caught.value).startswith("bundle/manifest.json")
    assert "\n" not in str(caught.value)


def test_a_missing_manifest_says_what_to_give(tmp_path):
    with pytest.raises(BundleError, match=r"does not exist; give the folder"):
        manifest.read(tmp_path / "manifest.json")


def test_a_number_json_cannot_hold_is_not_written():
    broken = msgspec.structs.replace(
        MANIFEST, verification=(Check("onnx", "int8", "jvp error", float("nan"), 0.05, False),)
    )
    with pytest.raises(ValueError, match="jvp error is nan"):
        manifest.write(broken)
