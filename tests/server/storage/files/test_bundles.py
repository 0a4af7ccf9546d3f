"""Uploading and serving bundles: verified by hash, resumable, nothing outside the folder."""

import hashlib

import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from server.jobs.presets import PRESETS, merged


@pytest.fixture
def parts(bundle):
    data = (bundle / FILE_NAME).read_bytes()
    return hashlib.sha256(data).hexdigest(), data, manifests.read(bundle / FILE_NAME).files


def test_an_interrupted_upload_goes_on_with_what_is_missing(server, bundle, parts):
    name, data, files = parts
    assert server.call("GET", f"/v1/bundles/{name}/missing").json() == [FILE_NAME]
    server.call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", 204, content=data)
    first = files[0].path
    server.call("PUT", f"/v1/bundles/{name}/{first}", 204, content=(bundle / first).read_bytes())
    missing = server.call("GET", f"/v1/bundles/{name}/missing").json()
    assert missing == [file.path for file in files[1:]]
    body = {"name": "job", "bundle": name, "settings": {"training": {"batch": 2, "length": 8}}}
    assert f"first {missing[0]}" in server.call("POST", "/v1/jobs", 409, json=body).json()["detail"]
    server.upload(bundle)
    assert server.call("GET", f"/v1/bundles/{name}/missing").json() == []


def test_a_file_must_be_what_the_manifest_says(server, bundle, parts):
    name, data, files = parts
    path = f"/v1/bundles/{name}/{files[0].path}"
    assert "first" in server.call("PUT", path, 409, content=b"x").json()["detail"]
    assert "sha256" in server.call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", 422, content=data + b" ").json()["detail"]
    server.call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", 204, content=data)
    damaged = bytearray((bundle / files[0].path).read_bytes())
    damaged[-1] ^= 1
    assert "sha256" in server.call("PUT", path, 422, content=bytes(damaged)).json()["detail"]
    server.call("PUT", path, 413, content=bytes(damaged) + b"more")
    server.call("PUT", f"/v1/bundles/{name}/foreign.bin", 404, content=b"x")


@pytest.mark.parametrize("path", ["../../../etc/passwd", "onnx/../../secret", "/etc/passwd", "missing.bin"])
def test_nothing_outside_the_bundle_is_served(server, bundle_name, path):
    response = server.http.get(f"/v1/bundles/{bundle_name}/{path.replace('..', '%2e%2e')}", headers=server.admin)
    assert response.status_code == 404
    assert b"root:" not in response.content


def test_a_manifest_that_names_places_outside_is_refused(server, parts):
    data = parts[1].replace(b'"path": "tokenizer.json"', b'"path": "../tokenizer.json"')
    data = data.replace(b'"tokenizer": "tokenizer.json"', b'"tokenizer": "../tokenizer.json"')
    name = hashlib.sha256(data).hexdigest()
    assert name != parts[0]
    detail = server.call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", 422, content=data).json()["detail"]
    assert "does not lie inside" in detail


def test_a_download_can_be_resumed(server, bundle, bundle_name, parts):
    device = server.device()
    path = max(parts[2], key=lambda file: file.bytes).path
    content = (bundle / path).read_bytes()
    url = f"/v1/bundles/{bundle_name}/{path}"
    whole = device.call("GET", url)
    assert whole.content == content
    assert "immutable" in whole.headers["cache-control"]
    headers = {**device.headers, "Range": "bytes=100-", "If-Range": whole.headers["etag"]}
    rest = server.http.get(url, headers=headers)
    assert (rest.status_code, rest.content) == (206, content[100:])


def test_bundles_that_are_complete_are_listed(server, bundle, parts):
    name, data, _ = parts
    server.call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", 204, content=data)
    assert server.call("GET", "/v1/bundles").json() == []
    server.upload(bundle)
    (found,) = server.call("GET", "/v1/bundles").json()
    manifest = manifests.parse(data)
    assert found["sha256"] == name
    assert found["shapes"] == [list(shape) for shape in manifest.shapes]
    assert (found["task"], found["labels"], found["units"]) == ("seq-cls", 3, len(manifest.units))
    assert found["bytes"] == sum(file.bytes for file in manifest.files)
    assert found["preset"] == "auto"
    shape = {"batch": 2, "length": 8}
    assert found["settings"] == merged(PRESETS["auto"], {"training": shape | {"directions": 2}, "passes": 2.0})
    assert found["in_mode"]["epoch"] == found["settings"]
    assert found["in_mode"]["iteration"] == merged(PRESETS["scalars"], {"training": shape})
    server.call("GET", "/v1/bundles", 401, headers={})


def test_a_job_from_what_is_listed_fits_the_adapter(server, narrow):
    server.upload(narrow)
    (found,) = server.call("GET", "/v1/bundles").json()
    assert found["preset"] == found["method"] == "bottleneck"
    wanted = {"name": "listed", "bundle": found["sha256"], "settings": found["settings"]}
    training = server.call("POST", "/v1/jobs", 201, json=wanted).json()["settings"]["training"]
    assert (training["estimator"], training["exact_blocks"]) == ("mixed", 2)
