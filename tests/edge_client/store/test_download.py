"""Bundles from a real HTTP server that stumbles and cuts connections as told."""

import hashlib
import re

import httpx
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from edge_client.errors import BadAnswer, BundleError, StoreError
from edge_client.store.download import PARTIAL, fetch


@pytest.fixture
def serving(stage, trainable):
    stage.folder = trainable
    return stage, hashlib.sha256((trainable / FILE_NAME).read_bytes()).hexdigest()


def requests(stage) -> list[tuple[str, str | None]]:
    return [(path.split("/", 4)[4], headers.get("Range")) for _, path, headers, _ in stage.seen]


def test_a_bundle_is_fetched_once(serving, tmp_path):
    stage, name = serving
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b", tell=stage.told.append)
        assert {path for path, _ in requests(stage)} == {FILE_NAME, *(file.path for file in bundle.manifest.files)}
        bundle.open(bundle.folder, verify="onnx")
        stage.seen.clear()
        fetch(server, name, "onnx", tmp_path / "b")
    assert stage.seen == []
    assert stage.told[-1].details["bytes"] == bundle.bytes


def test_a_download_goes_on_where_it_was_cut(serving, tmp_path):
    stage, name = serving
    stage.cuts = [0, 100, 1, 1000]
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b")
    bundle.open(bundle.folder, verify="onnx")
    asked = [wanted for _, wanted in requests(stage) if wanted]
    assert asked == ["bytes=100-", "bytes=101-", "bytes=1101-"]
    assert not list(bundle.folder.rglob("*" + PARTIAL))


def test_what_an_interrupted_client_had_is_kept(serving, tmp_path):
    stage, name = serving
    stage.cuts = [None, 300]

    def stop(_):
        raise KeyboardInterrupt

    with stage.device(pause=stop) as server, pytest.raises(KeyboardInterrupt):
        fetch(server, name, "onnx", tmp_path / "b")
    (partial,) = (tmp_path / "b").rglob("*" + PARTIAL)
    assert partial.stat().st_size == 300
    stage.seen.clear()
    with stage.device() as server:
        fetch(server, name, "onnx", tmp_path / "b")
    assert (partial.name.removesuffix(PARTIAL), "bytes=300-") in [(p.split("/")[-1], r) for p, r in requests(stage)]


def test_a_server_without_ranges(serving, tmp_path):
    stage, name = serving
    stage.ranges = False
    stage.cuts = [200, 300]
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b")
    bundle.open(bundle.folder, verify="onnx")


def test_a_damaged_partial_file_is_fetched_again(serving, tmp_path):
    stage, name = serving
    manifest = manifests.read(stage.folder / FILE_NAME)
    big = max(manifest.files, key=lambda file: file.bytes)
    for size in (big.bytes // 2, big.bytes, big.bytes + 5):
        folder = tmp_path / str(size)
        partial = folder / (big.path + PARTIAL)
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"x" * size)
        with stage.device() as server:
            bundle = fetch(server, name, "onnx", folder)
        bundle.open(folder, verify="onnx")


def test_files_that_are_not_what_the_manifest_says(serving, tmp_path, trainable):
    stage, name = serving
    other = tmp_path / "server"
    for file in [FILE_NAME, *(f.path for f in manifests.read(trainable / FILE_NAME).files)]:
        (other / file).parent.mkdir(parents=True, exist_ok=True)
        (other / file).write_bytes((trainable / file).read_bytes())
    stage.folder = other
    first = manifests.read(trainable / FILE_NAME).files[0]
    (other / first.path).write_bytes(b"y" * first.bytes)
    with stage.device() as server:
        with pytest.raises(BundleError, match=f"gives a damaged {re.escape(first.path)}"):
            fetch(server, name, "onnx", tmp_path / "b")
        (other / first.path).write_bytes(b"y" * (first.bytes + 1))
        with pytest.raises(BadAnswer, match="longer than the manifest says"):
            fetch(server, name, "onnx", tmp_path / "b")
        (other / FILE_NAME).write_bytes(b"{}")
        with pytest.raises(BadAnswer, match="another manifest"):
            fetch(server, name, "onnx", tmp_path / "c")
        assert not (tmp_path / "c" / FILE_NAME).exists()


def test_a_bundle_without_the_runtime(serving, tmp_path):
    stage, name = serving
    with stage.device() as server, pytest.raises(BundleError, match="no programs for executorch; it has onnx"):
        fetch(server, name, "executorch", tmp_path / "b")


def test_a_full_disk(serving, tmp_path, monkeypatch):
    stage, name = serving
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with stage.device() as server, pytest.raises(StoreError, match=r"0.0 MB are free; make room"):
        fetch(server, name, "onnx", tmp_path / "b")


def test_a_disk_that_fills_up_keeps_what_came(serving, tmp_path, monkeypatch):
    stage, name = serving
    real = httpx.Response.iter_bytes

    def full(self, size=None):
        for number, part in enumerate(real(self, 64)):
            if number == 2 and "onnx" in str(self.url):
                raise OSError(28, "No space left on device")
            yield part

    with monkeypatch.context() as patch, stage.device() as server:
        patch.setattr(httpx.Response, "iter_bytes", full)
        with pytest.raises(StoreError, match="what was downloaded is kept"):
            fetch(server, name, "onnx", tmp_path / "b")
    assert [path.stat().st_size for path in (tmp_path / "b").rglob("*" + PARTIAL)] == [128]
    with stage.device() as server:
        fetch(server, name, "onnx", tmp_path / "b")
