import hashlib
import stat
import zipfile
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


def zipped(folder: Path, *, top: str = "") -> Path:
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                target.write(path, top + path.relative_to(folder).as_posix())
    return archive


def test_a_folder(folder):
    with Bundle.open(str(folder)) as bundle:
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
    for path in (folder, zipped(folder)):
        with pytest.raises(BundleError) as caught:
            Bundle.open(path)
        assert "\n" not in str(caught.value)
        if path == folder:
            assert caught.match(message)


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
    with pytest.raises(BundleError, match=r"nowhere does not exist"):
        Bundle.open(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"manifest.json does not exist; give the folder"):
        Bundle.open(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(BundleError, match=r"note.txt is not a whole .zip file"):
        Bundle.open(tmp_path / "note.txt")


@pytest.mark.parametrize("top", ["", "bundle/"])
def test_a_zip_is_unpacked_for_as_long_as_it_is_open(folder, top):
    with Bundle.open(zipped(folder, top=top)) as bundle:
        unpacked = bundle.folder
        assert (unpacked / "onnx/weights.bin").read_bytes() == b"weights"
    assert not unpacked.exists()
    assert not unpacked.parent.exists()


def test_a_zip_is_unpacked_once_into_a_folder_of_the_callers_choice(folder, tmp_path):
    archive = zipped(folder)
    cache = tmp_path / "cache"
    with Bundle.open(archive, unpack_into=cache) as bundle:
        first = bundle.folder
    before = (first / "onnx/weights.bin").stat().st_mtime_ns
    assert Bundle.open(archive, unpack_into=cache).folder == first
    assert (first / "onnx/weights.bin").stat().st_mtime_ns == before
    (first / "onnx/weights.bin").write_bytes(b"")  # as a power cut may leave it
    assert Bundle.open(archive, unpack_into=cache).folder == first
    assert (first / "onnx/weights.bin").read_bytes() == b"weights"
    assert list(cache.iterdir()) == [first]


def test_a_broken_zip_leaves_nothing_behind(folder, tmp_path):
    archive = zipped(folder)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(BundleError, match=r"not a whole .zip"):
        Bundle.open(archive, unpack_into=tmp_path / "cache")
    (folder / "onnx/weights.bin").unlink()
    with pytest.raises(BundleError, match=r"lacks onnx/weights.bin"):
        Bundle.open(zipped(folder), unpack_into=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("path", ["../secret", "/secret"])
def test_a_zip_writes_nothing_outside_its_folder(folder, tmp_path, path):
    change(folder, files=(*MANIFEST.files, file_spec(path, b"secret")))
    archive = zipped(folder)
    with zipfile.ZipFile(archive, "a") as target:
        target.writestr(path, b"secret")
    with pytest.raises(BundleError, match=r"does not lie inside the bundle"):
        Bundle.open(archive, unpack_into=tmp_path / "cache")
    assert not (tmp_path / "secret").exists()


def test_a_zip_gives_no_more_than_its_manifest_says(folder, tmp_path):
    archive = zipped(folder)
    with zipfile.ZipFile(archive, "a") as target:
        target.writestr("extra", b"0" * 1000)
    with Bundle.open(archive) as bundle:
        assert not (bundle.folder / "extra").exists()
    (folder / "onnx/weights.bin").write_bytes(b"0" * 10_000)
    with pytest.raises(BundleError, match=r"weights.bin has 10000 bytes where its manifest says 7"):
        Bundle.open(zipped(folder))


def test_a_link_in_a_zip_is_refused(folder):
    (folder / "onnx/weights.bin").unlink()
    archive = zipped(folder)
    link = zipfile.ZipInfo("onnx/weights.bin")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as target:
        target.writestr(link, "/etc/xx")
    with pytest.raises(BundleError, match=r"is a link"):
        Bundle.open(archive)


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
