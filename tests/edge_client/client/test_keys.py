"""Clients whose key never leaves the device, over real HTTP."""

import time
from types import SimpleNamespace

import httpx
import pytest

from edge_client import keys
from edge_client.client.client import Client
from edge_client.errors import StoreError, Unauthorized
from edge_client.store.jobs import DeviceStore
from edge_client.wire import proofs
from edge_client.wire.proofs import Signing
from edge_client.wire.protocol import CheckIn, Enrolled
from edge_client.wire.server import Server


def test_a_device_enrols_by_its_key(fleet, trainable):
    fleet.job(fleet.upload(trainable), rounds=2)
    client = fleet.client()
    assert client.run(rounds=1).rounds == 1
    store = DeviceStore(fleet.folder / "home", fleet.address)
    assert store.identity().secret == ""
    assert (store.folder / "device.key").stat().st_mode & 0o077 == 0
    assert not fleet.told("warning")
    assert fleet.client(token=False).run(rounds=1).rounds == 1  # it is the same device in another process
    assert len(fleet.call("GET", "/v1/devices").json()) == 1
    (store.folder / "device.key").unlink()
    with pytest.raises(StoreError, match=r"lacks device\.key"):
        fleet.client(token=False).run(once=True)


def test_a_device_that_was_cut_off_as_it_enrolled_asks_again_as_the_same(fleet):
    token = fleet.call("POST", "/v1/tokens", json={"uses": 1}).json()["token"]
    fleet.client(token=token).run(once=True)
    store = DeviceStore(fleet.folder / "home", fleet.address)
    first = store.identity()
    (store.folder / "identity.json").unlink()  # as if it had been killed before it kept the answer
    fleet.client(token=token).run(once=True)
    assert store.identity() == first


def test_mode_iteration_by_a_key(fleet, trainable):
    fleet.job(fleet.upload(trainable), rounds=1, training={"mode": "iteration", "iterations": 2})
    assert fleet.client().run(rounds=1).rounds == 1
    assert DeviceStore(fleet.folder / "home", fleet.address).identity().secret == ""


def test_a_device_whose_clock_is_wrong_takes_the_servers_time(fleet, monkeypatch):
    client = fleet.client()
    behind = 40 * 86_400
    monkeypatch.setattr(proofs, "time", SimpleNamespace(time=lambda: time.time() - behind))
    client.run(once=True)
    assert client.server.signing._ahead == pytest.approx(behind, abs=30)


class Lossy(httpx.HTTPTransport):
    """Carries requests to the server; an answer may get lost, and something happen before a request goes out."""

    def __init__(self):
        super().__init__()
        self.sent, self.losses, self.before = [], 0, None

    def handle_request(self, request):
        before, self.before = self.before, None
        if before:
            before()
        self.sent.append(request.headers["Authorization"])
        answer = super().handle_request(request)
        if self.losses:
            self.losses -= 1
            answer.read()
            answer.close()
            raise httpx.ReadError("lost")
        return answer


@pytest.fixture
def wired(fleet):
    """Two processes of one device, and how the first's requests travel."""
    fleet.client().run(once=True)
    store = DeviceStore(fleet.folder / "home", fleet.address)
    identity, key = store.identity(), keys.read_secret(store.folder / "device.key")
    lossy = Lossy()
    servers = []
    for transport in (lossy, None):
        server = Server(fleet.address, identity=identity, transport=transport, pause=lambda _: None)
        server.signing = Signing(identity.device, key, fleet.address)
        servers.append(server)
    yield *servers, lossy
    for server in servers:
        server.close()


CHECK_IN = CheckIn(runtimes=["onnx"])


def test_an_answer_that_was_lost_is_asked_for_by_another_signature(wired):
    server, _, wire = wired
    wire.losses = 2
    assert server.check_in(CHECK_IN).task is None
    assert len(set(wire.sent)) == len(wire.sent) == 3


def test_two_processes_of_a_device_do_not_stop_each_other(wired):
    server, other, wire = wired
    wire.before = lambda: other.check_in(CHECK_IN)
    assert server.check_in(CHECK_IN).task is None
    assert len(set(wire.sent)) == len(wire.sent) == 2  # signed before the other's, and once more


def test_a_clock_that_goes_back_stops_nothing(wired, monkeypatch):
    server, _, wire = wired
    for behind in (0, 20, 40):
        monkeypatch.setattr(proofs, "time", SimpleNamespace(time=lambda behind=behind: time.time() - behind))
        server.check_in(CHECK_IN)
    assert len(wire.sent) == 3


def test_a_device_without_the_library_falls_back_to_a_secret(fleet, trainable, monkeypatch):
    fleet.job(fleet.upload(trainable), rounds=1)
    monkeypatch.setattr("edge_client.client.enrolment.installed", lambda: False)
    assert fleet.client().run(rounds=1).rounds == 1
    assert "by a secret, not a key: no package cryptography here" in fleet.told("warning")[0].message
    assert DeviceStore(fleet.folder / "home", fleet.address).identity().secret


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "the answer was lost"])
def test_a_device_of_an_earlier_version_is_upgraded(fleet, monkeypatch, lost):
    with monkeypatch.context() as earlier:
        earlier.setattr("edge_client.client.enrolment.installed", lambda: False)
        client = fleet.client()
        client.run(once=True)
    old = client.store.identity()
    assert old.secret
    fleet.client(token=False).run(once=True)
    assert client.store.identity() == Enrolled(old.device, "")
    if lost:
        client.store.save_identity(old)
        fleet.client(token=False).run(once=True)
        assert client.store.identity() == Enrolled(old.device, "")
    headers = {"Authorization": f"Bearer {old.device}.{old.secret}"}
    answer = fleet.http.post("/v1/check-in", headers=headers, json={"runtimes": ["onnx"]})
    assert answer.status_code == 401


def test_a_server_of_an_earlier_version_goes_on_by_the_secret(stage, tmp_path):
    client = Client(stage.address, data=[{"text": "a", "label": 0}], home=tmp_path, patience=5)
    client.store.save_identity(Enrolled("d-1", "secret"))
    stage.problem(404, "http")  # it takes no keys
    stage.problem(404, "http")  # nor does it tell what its jobs ask of rows
    stage.answer({"wait": 0.0, "reason": "no job"})
    client.run(once=True)
    client.close()
    assert [headers["Authorization"] for _, _, headers, _ in stage.seen] == ["Bearer d-1.secret"] * 3
    assert client.store.identity() == Enrolled("d-1", "secret")


def test_a_revoked_device_of_an_earlier_version_keeps_its_identity(fleet, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("edge_client.client.enrolment.installed", lambda: False)
        client = fleet.client()
        client.run(once=True)
    old = client.store.identity()
    fleet.call("DELETE", f"/v1/devices/{old.device}")
    with pytest.raises(Unauthorized):
        fleet.client(token=False).run(once=True)
    assert client.store.identity() == old


def test_a_proxy_may_take_the_beginning_of_a_path_off():
    key = keys.make()
    request = httpx.Request("GET", "https://example.org/spry/v1/jobs/a%20b/weights", params={"since": -1})
    next(Signing("d-1", key, "https://example.org/spry").auth_flow(request))
    moment, _, signature = request.headers["Authorization"].removeprefix("Spry d-1.").partition(".")
    text = proofs.signed_text("GET", int(moment), "", "since=-1", "/v1/jobs/a b/weights")
    assert keys.verify(keys.public_of(key), text, keys.decoded(signature, keys.SIGNATURE_BYTES))


def test_a_stolen_identity_is_worth_nothing_without_the_key(fleet):
    client = fleet.client()
    client.run(once=True)
    client.store.folder.joinpath("device.key").write_text(f"secret:{keys.make()}\n")
    with pytest.raises(Unauthorized, match="unknown device or wrong key"):
        fleet.client(token=False).run(once=True)
