"""Bundles that run code on devices: taken from publishers whose key is pinned alone."""

import hashlib
import shutil

import msgspec
import pytest
import torch

from edge_client import keys
from edge_client.bundle import manifest as manifests
from edge_client.bundle import signature
from edge_client.bundle.manifest import FILE_NAME, FileSpec
from edge_client.errors import BundleError, SpryError
from edge_client.store.jobs import DeviceStore


class Overwriting(torch.nn.Module):
    """Writes to a file as soon as it is loaded."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path
        self.mapped = torch.zeros(1, dtype=torch.uint8)

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        self.path, self.training = state
        self.mapped = torch.from_file(self.path, shared=True, size=4, dtype=torch.uint8)
        self.mapped.fill_(65)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim.py"
    path.write_text("pass # of another program\n")
    return path


@pytest.fixture
def hostile(trainable, tmp_path, victim):
    """A bundle whose programs are TorchScript that overwrites a file of somebody else."""
    folder = shutil.copytree(trainable, tmp_path / "hostile")
    manifest = manifests.read(folder / FILE_NAME)
    programs = {program.file for program in manifest.runtimes["onnx"].programs}
    for path in programs:
        torch.jit.script(Overwriting(str(victim))).save(str(folder / path))
    victim.write_text("pass # of another program\n")  # `script` may have loaded it
    files = []
    for file in manifest.files:
        data = (folder / file.path).read_bytes()
        files.append(FileSpec(file.path, hashlib.sha256(data).hexdigest(), len(data)))
    changed = msgspec.structs.replace(manifest, files=tuple(files), runtimes={"torchscript": manifest.runtimes["onnx"]})
    (folder / FILE_NAME).write_bytes(manifests.write(changed))
    return folder


def upload(fleet, folder) -> str:
    name = fleet.upload(folder)
    if (folder / signature.SIGNATURES).is_file():
        content = (folder / signature.SIGNATURES).read_bytes()
        fleet.call("PUT", f"/v1/bundles/{name}/{signature.SIGNATURES}", content=content)
    return name


def test_torchscript_is_not_offered_unasked(fleet, hostile, victim):
    fleet.job(upload(fleet, hostile), rounds=1)
    client = fleet.client()
    assert "torchscript" not in client.runtimes
    assert client.run(once=True).rounds == 0
    assert victim.read_text() == "pass # of another program\n"


def test_torchscript_needs_a_publisher(fleet, hostile, victim):
    with pytest.raises(SpryError, match="takes only signed bundles: pin the key of their publisher with --trust"):
        fleet.client(runtime="torchscript")


def test_torchscript_of_nobody_does_not_run(fleet, hostile, victim):
    fleet.job(upload(fleet, hostile), rounds=1)
    assert fleet.client(runtime="torchscript", trust=keys.public_of(keys.make())).run(once=True).failures == 1
    assert "the bundle is not signed, and this device" in fleet.told("failed")[0].message
    assert victim.read_text() == "pass # of another program\n"
    (kept,) = (fleet.folder / "home").glob("*/bundles/*")
    assert [path.name for path in kept.iterdir()] == [FILE_NAME]


def test_torchscript_of_another_publisher_does_not_run(fleet, hostile, victim):
    signature.sign(hostile, keys.make())
    fleet.job(upload(fleet, hostile), rounds=1)
    assert fleet.client(runtime="torchscript", trust=keys.public_of(keys.make())).run(once=True).failures == 1
    assert "is not signed by the publisher" in fleet.told("failed")[0].message
    assert victim.read_text() == "pass # of another program\n"


def test_what_remains_a_publisher_is_trusted_with_all_that_the_user_may(fleet, hostile, victim):
    """The attack itself works: the tests above would fail where a check is missing."""
    public = signature.sign(hostile, keys.make())
    fleet.job(upload(fleet, hostile), rounds=1)
    fleet.client(runtime="torchscript", trust=public).run(once=True)
    assert victim.read_text().startswith("AAAA"), fleet.told("failed")


@pytest.mark.parametrize("how", ["option", "token"])
def test_a_pinned_key_is_kept_and_lets_signed_bundles_pass(fleet, trainable, tmp_path, how):
    folder = shutil.copytree(trainable, tmp_path / "signed")
    public = signature.sign(folder, keys.make())
    fleet.job(upload(fleet, folder), rounds=2)
    token = fleet.token()
    how = {"trust": public, "token": token} if how == "option" else {"token": f"{token}.{public}"}
    assert fleet.client(**how).run(rounds=1).rounds == 1
    assert DeviceStore(fleet.folder / "home", fleet.address).publisher() == public
    client = fleet.client(token=False)
    assert client.run(rounds=1).rounds == 1
    assert client.predict(["the ice"])


def test_a_bundle_may_be_signed_after_it_was_uploaded(fleet, trainable, tmp_path):
    folder = shutil.copytree(trainable, tmp_path / "signed")
    fleet.job(upload(fleet, folder), rounds=1)
    public = signature.sign(folder, secret := keys.make())
    assert public == keys.public_of(secret)
    assert fleet.client(trust=public).run(once=True).failures == 1
    upload(fleet, folder)
    assert fleet.client().run(rounds=1).rounds == 1


def test_predictions_take_no_bundle_that_the_publisher_did_not_sign(fleet, trainable):
    fleet.job(fleet.upload(trainable), rounds=1)
    client = fleet.client()
    client.run(rounds=1)
    client.store.pin(keys.public_of(keys.make()))
    with pytest.raises(BundleError, match="the bundle is not signed"):
        client.predict(["the ice"])


def test_a_damaged_pin_is_no_missing_one(fleet):
    client = fleet.client()
    client.store.pin("damaged")
    with pytest.raises(SpryError, match="is no public key"):
        fleet.client()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_gpu_that_is_not_there_gives_the_task_back(fleet, exported_once, tmp_path):
    folder = shutil.copytree(exported_once("torchscript", runtimes=("torchscript",)), tmp_path / "bundle")
    public = signature.sign(folder, keys.make())
    fleet.job(upload(fleet, folder), rounds=1, training={"batch": 2})
    assert fleet.client(runtime="torchscript", device="cuda", trust=public).run(once=True).failures
    assert "finds no CUDA" in fleet.told("failed")[0].message
