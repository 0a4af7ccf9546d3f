import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer, models

from edge_client import BundleError
from edge_client.bundle import manifest
from edge_client.bundle.folder import Bundle, files_of
from edge_client.bundle.manifest import (
    AdapterSpec,
    FileSpec,
    Manifest,
    ModelSpec,
    Parameter,
    ProgramSpec,
    RuntimeSpec,
    Segment,
    Unit,
)

ADAPTER = save({"a": np.ones((1, 2), np.float16), "head": np.zeros((2, 2), np.float32)})
FILES = {
    "adapter.safetensors": ADAPTER,
    "tokenizer.json": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str().encode(),
    "onnx/embed.onnx": b"embed" * 300_000,
    "onnx/weights.bin": b"weights",
    "torchscript/head.pt": b"head",
}


def program(segment: str, file: str) -> ProgramSpec:
    return ProgramSpec(segment, "plain", 1, 2, 0, file, "", (), (), 1, 1, 1)


def file_spec(path: str, data: bytes) -> FileSpec:
    return FileSpec(path, hashlib.sha256(data).hexdigest(), len(data))


MANIFEST = Manifest(
    made_by="tests",
    model=ModelSpec("toy", "Toy", "seq-cls", ("no", "yes"), 0, 100),
    adapter=AdapterSpec("lora", {}, "adapter.safetensors"),
    inputs=("input_ids",),
    units=(Unit("u", ("embed",), (Parameter("a", (1, 2)),)),),
    head=(Parameter("head", (2, 2)),),
    segments=(Segment("embed", 0, 0), Segment("head", 0, 0)),
    shapes=((1, 2),),
    directions=(1,),
    tokenizer="tokenizer.json",
    pad_token_id=0,
    runtimes={
        "onnx": RuntimeSpec("none", {}, (program("embed", "onnx/embed.onnx"),), 7, files=("onnx/weights.bin",)),
        "torchscript": RuntimeSpec("none", {}, (program("head", "torchscript/head.pt"),), 4),
    },
    verification=(),
    files=tuple(file_spec(path, data) for path, data in FILES.items()),
)


def change(folder: Path, **fields: object) -> None:
    changed = msgspec.structs.replace(MANIFEST, **fields)
    (folder / "manifest.json").write_bytes(manifest.write(changed))


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "bundle"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    change(folder)
    return folder


def test_a_folder(folder):
    bundle = Bundle.open(str(folder))
    assert bundle.manifest.model.name == "toy"
    assert bundle.folder == folder
    assert bundle.bytes == sum(map(len, FILES.values()))
    assert [p.segment for p in bundle.programs("onnx")] == ["embed"]
    adapter = bundle.initial_adapter()
    assert {name: (value.dtype, value.shape) for name, value in adapter.items()} == {
        "a": (np.float32, (1, 2)),
        "head": (np.float32, (2, 2)),
    }
    adapter["a"] += 1  # the caller's own
    assert bundle.tokenizer().encode("a").ids == [0]
    assert folder.is_dir()


def test_verification_can_leave_out_other_runtimes(folder):
    assert [file.path for file in files_of(MANIFEST, "onnx")] == [p for p in FILES if not p.startswith("torchscript")]
    (folder / "torchscript/head.pt").unlink()
    Bundle.open(folder, verify="onnx")
    with pytest.raises(BundleError, match=r"head.pt is missing"):
        Bundle.open(folder, verify="torchscript")
    with pytest.raises(BundleError, match=r"no programs for executorch; it has onnx, torchscript: export it with"):
        Bundle.open(folder, verify="executorch")


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("onnx/embed.onnx", damaged, r"embed.onnx is corrupt: expected sha256 \w+…, found \w+…"),
        ("onnx/embed.onnx", lambda data: data[:-3], r"embed.onnx is truncated: expected 1500000 bytes, found 1499997"),
        ("onnx/embed.onnx", lambda data: data + b"x", r"embed.onnx is too long: expected 1500000 bytes"),
        ("manifest.json", lambda data: data[:40], r"manifest.json is damaged"),
        ("manifest.json", lambda data: data.replace(b'"schema": 1', b'"schema": 9'), r"has schema 9.* upgrade spry"),
    ],
)
def test_a_damaged_file_is_named(folder, name, change, message):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.open(folder)
    assert "\n" not in str(caught.value)


def test_without_verification_only_sizes_are_looked_at(folder):
    (folder / "onnx/weights.bin").write_bytes(b"weighty")
    Bundle.open(folder, verify=False)
    (folder / "onnx/weights.bin").write_bytes(b"weight")
    with pytest.raises(BundleError, match="truncated"):
        Bundle.open(folder, verify=False)


@pytest.mark.parametrize("path", ["../secret", "/etc/hosts", "onnx/../../secret", "C:/secret", "a\\b", "", "."])
def test_a_path_out_of_the_bundle_is_refused(folder, path):
    (folder.parent / "secret").write_bytes(b"secret")
    change(folder, files=(*MANIFEST.files, file_spec(path, b"secret")))
    with pytest.raises(BundleError, match=r"does not lie inside the bundle"):
        Bundle.open(folder)


def test_a_link_out_of_the_bundle_is_refused(folder):
    outside = folder.parent / "outside"
    outside.write_bytes(FILES["onnx/weights.bin"])
    (folder / "onnx/weights.bin").unlink()
    (folder / "onnx/weights.bin").symlink_to(outside)
    with pytest.raises(BundleError, match=r"weights.bin links to a place outside"):
        Bundle.open(folder)


def test_nothing_there(tmp_path):
    with pytest.raises(BundleError, match=r"nowhere is no folder"):
        Bundle.open(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"manifest.json does not exist; give the folder"):
        Bundle.open(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(BundleError, match=r"note.txt is no folder; give the folder"):
        Bundle.open(tmp_path / "note.txt")


def rewritten(folder: Path, name: str, data: bytes, **fields: object) -> Bundle:
    (folder / name).write_bytes(data)
    files = tuple(file_spec(f.path, data if f.path == name else FILES[f.path]) for f in MANIFEST.files)
    change(folder, files=files, **fields)
    return Bundle.open(folder)


def test_an_adapter_that_does_not_fit(folder):
    with pytest.raises(BundleError, match=r"cannot be read as safetensors"):
        rewritten(folder, "adapter.safetensors", b"no").initial_adapter()
    with pytest.raises(BundleError, match=r"expected head of shape \[2, 2\], found none"):
        rewritten(folder, "adapter.safetensors", save({"a": np.ones((1, 2), np.float32)})).initial_adapter()
    with pytest.raises(BundleError, match=r"expected a of shape \[1, 2\], found \[2\]"):
        rewritten(folder, "adapter.safetensors", save({"a": np.ones(2, np.float32)})).initial_adapter()


def test_a_tokenizer_that_is_none(folder):
    with pytest.raises(BundleError, match=r"cannot be read as a tokenizer"):
        rewritten(folder, "tokenizer.json", b"{}").tokenizer()
    with pytest.raises(BundleError, match=r"holds no tokenizer"):
        rewritten(folder, "tokenizer.json", b"{}", tokenizer=None).tokenizer()
