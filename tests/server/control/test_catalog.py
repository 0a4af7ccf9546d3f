"""What people call bundles."""

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
