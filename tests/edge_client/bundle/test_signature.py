"""Signatures of bundles: on disk, in archives, by several keys."""

import hashlib
import shutil

import msgspec
import pytest

from edge_client import keys
from edge_client.bundle import manifest as manifests
from edge_client.bundle import signature
from edge_client.commands import cli
from edge_client.errors import BundleError


@pytest.fixture
def folder(trainable, tmp_path):
    return shutil.copytree(trainable, tmp_path / "bundle")


def test_a_signature_vouches_for_the_manifest_alone_that_was_signed(folder):
    public = signature.sign(folder, keys.make())
    signature.check_folder(folder, public)
    with pytest.raises(BundleError, match="is not signed by the publisher"):
        signature.check_folder(folder, keys.public_of(keys.make()))
    file = folder / manifests.FILE_NAME
    file.write_bytes(manifests.write(msgspec.structs.replace(manifests.read(file), files=())))
    with pytest.raises(BundleError, match="is not signed by the publisher"):
        signature.check_folder(folder, public)


def test_a_bundle_passes_from_one_key_to_the_next(folder):
    first, second = signature.sign(folder, keys.make()), signature.sign(folder, keys.make())
    for public in (first, second):
        signature.check_folder(folder, public)


def test_a_bundle_without_signatures(folder):
    with pytest.raises(
        BundleError, match="the bundle is not signed, and this device takes only those of the publisher"
    ):
        signature.check_folder(folder, keys.public_of(keys.make()))


@pytest.mark.parametrize("data", [b"nonsense", b"\xff", b"a b\n", b"\n", b"x" * 5000], ids=repr)
def test_damaged_signatures(folder, data):
    (folder / signature.SIGNATURES).write_bytes(data)
    with pytest.raises(BundleError, match="holds something else than signatures"):
        signature.check_folder(folder, keys.public_of(keys.make()))


def test_the_command(folder, tmp_path, capsys):
    key = tmp_path / "publisher.key"
    assert cli.run(["keys", "make", str(key)]) == 0
    public = capsys.readouterr().out.strip()
    assert (tmp_path / "publisher.key.pub").read_text().strip() == public
    assert key.stat().st_mode & 0o077 == 0
    assert cli.run(["keys", "show", str(key)]) == 0
    assert capsys.readouterr().out.strip() == public
    assert cli.run(["keys", "sign", str(folder), "--key", str(key)]) == 0
    signature.check_folder(folder, public)
    name = hashlib.sha256(key.read_bytes()).hexdigest()
    assert cli.run(["keys", "make", str(key)]) == 2
    assert "is overwritten is lost" in capsys.readouterr().err
    assert hashlib.sha256(key.read_bytes()).hexdigest() == name
