"""The catalog of bundles: names, signers, and what jobs on them cost and learn."""

import shutil

from edge_client import keys
from edge_client.bundle import signature
from edge_client.bundle.manifest import FILE_NAME


def test_a_bundle_is_named_before_and_after_its_first_job(serving, bundle, database):
    with serving(**database) as server:
        name = server.upload(bundle)
        assert server.call("GET", "/v1/bundles").json()[0]["name"] == ""
        server.call("PATCH", f"/v1/bundles/{name}", 204, json={"name": "tickets"})
        server.create_job(name)
        assert server.call("GET", "/v1/bundles").json()[0]["name"] == "tickets"
        server.call("PATCH", f"/v1/bundles/{name}", 204, json={"name": "spring"})
        deeds = [deed for deed in server.call("GET", "/v1/audit").json() if deed["action"] == "bundle-named"]
        assert [(deed["actor"], deed["subject"], deed["detail"]) for deed in deeds] == [
            ("admin", name, "spring"), ("admin", name, "tickets"),
        ]  # fmt: skip
        server.call("PATCH", f"/v1/bundles/{name}", 204, json={"name": ""})
        assert server.call("GET", "/v1/bundles").json()[0]["name"] == ""


def test_what_is_not_there_gets_no_name(server, bundle):
    assert "lacks 1 files" in server.call("PATCH", f"/v1/bundles/{'0' * 64}", 409, json={"name": "x"}).json()["detail"]
    server.call("PATCH", "/v1/bundles/short", 422, json={"name": "x"})
    name = server.upload(bundle)
    server.call("PATCH", f"/v1/bundles/{name}", 422, json={"name": "x" * 101})
    assert server.call("GET", f"/v1/bundles/{name}/{FILE_NAME}").content == (bundle / FILE_NAME).read_bytes()


def test_who_signed_a_bundle_is_told(server, bundle, tmp_path):
    copied, secret = shutil.copytree(bundle, tmp_path / "bundle"), keys.make()
    name = server.upload(copied)
    assert server.call("GET", "/v1/bundles").json()[0]["publishers"] == []
    public = signature.sign(copied, secret)
    forged = keys.public_of(keys.make())
    lines = (copied / signature.SIGNATURES).read_text()
    content = (lines + lines.replace(public, forged)).encode()  # another's key beside a signature that is not its
    server.call("PUT", f"/v1/bundles/{name}/{signature.SIGNATURES}", 204, content=content)
    assert server.call("GET", "/v1/bundles").json()[0]["publishers"] == [public]


def test_a_plan_is_what_a_job_becomes(server, bundle):
    name = server.upload(bundle)
    wish = {"settings": {"rounds": 7, "training": {"learning_rate": 0.5}}}
    plan = server.call("POST", f"/v1/bundles/{name}/plan", json=wish).json()
    assert plan["preset"] == "auto"
    made = server.call(
        "POST", "/v1/jobs", 201, json={"name": "job", "bundle": name, "settings": plan["settings"]}
    ).json()
    assert (made["settings"]["rounds"], made["settings"]["training"]["learning_rate"]) == (7, 0.5)
    assert made["settings"]["average"] == 0.9, "the preset's"
    assert server.call("GET", "/v1/jobs/job/cost").json() == plan["cost"]
    known = server.call("GET", "/v1/job-settings").json()
    assert "aggregation" in {setting["name"] for group in known for setting in group["settings"]}
    for wrong, why in (
        ({"settings": {"training": {"batch": 0}}}, "training.batch"),
        ({"settings": {"training": {"batch": 9}}}, "export again"),
        ({"settings": {"nonsense": 1}}, "nonsense"),
        ({"preset": "none"}, "preset must be one of"),
    ):
        assert why in server.call("POST", f"/v1/bundles/{name}/plan", 422, json=wrong).json()["detail"]


def test_a_job_tells_the_formats_of_what_it_learns(server, bundle, talker):
    for name, folder in {"classes": bundle, "speech": talker}.items():
        server.create_job(server.upload(folder), name, training={"length": 32} if folder is talker else {})
    assert {name: server.job(name)["formats"] for name in ("classes", "speech")} == {
        "classes": ["peft"], "speech": ["peft", "gguf"],
    }  # fmt: skip
    server.call("GET", "/v1/jobs/classes/adapter?format=gguf", 409)
    server.call("GET", "/v1/jobs/speech/adapter?format=gguf")
