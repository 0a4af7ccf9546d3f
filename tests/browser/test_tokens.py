"""Enrolment tokens on the dashboard, in a real browser."""

import io
import subprocess

import pytest
from playwright.sync_api import expect

from edge_client.keys import make, public_of
from edge_client.wire.invitation import invitation_in
from tests.browser.tabs import DESKTOP, PHONE, Tab
from tests.test_journeys import fleet, rows


def read_by_a_camera(one: Tab) -> str:
    """Return what the picture on the screen says."""
    zxingcpp, image = pytest.importorskip("zxingcpp"), pytest.importorskip("PIL.Image")
    picture = image.open(io.BytesIO(one.page.locator("#made-qr").screenshot()))
    (found,) = zxingcpp.read_barcodes(picture)
    return found.text


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone-dark"])
def test_a_token_is_made_scanned_joined_with_and_revoked(tab, fresh, tmp_path, size, scheme):
    one, key = tab(size, scheme, fresh), public_of(make())
    one.open()
    one.turn_to("tokens")
    page = one.page
    page.get_by_label("What for").fill("a board")
    expect(page.locator("#token-warning")).to_be_visible()
    page.get_by_label("Publisher's public key").fill(key)
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#made-about")).to_have_text("Good for 1 device. It is shown here once.")
    command = page.locator("#made-line").inner_text()
    scanned = read_by_a_camera(one)
    assert command == f"spry join '{scanned}' --data my.jsonl"
    invited = invitation_in(scanned)
    assert (invited.server, invited.token.partition(".")[2]) == (fresh.server.url, key)

    data = fleet.write_rows(tmp_path / "my.jsonl", rows(20, 1))
    joined = subprocess.run(
        [*fleet.SPRY, "join", scanned, "--data", str(data), "--home", str(tmp_path / "home"), "--once"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert joined.returncode == 0, joined.stderr
    assert (next((tmp_path / "home").rglob("publisher.key"))).read_text().strip() == key
    with fresh.server.administrator() as admin:
        (device,) = admin.get("/v1/devices")
    assert device["token"] != fresh.token

    one.turn_to("job")
    one.turn_to("tokens")
    expect(page.locator("#made")).to_be_hidden()
    row = page.locator("#tokens tbody tr").first
    expect(row).to_contain_text("a board")
    expect(row).to_contain_text("used up")
    row.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button", name="Revoke…")).to_be_hidden()


def test_what_is_wrong_with_a_token_is_told(tab, fresh):
    one = tab(at=fresh)
    one.open()
    one.turn_to("tokens")
    page = one.page
    page.get_by_label("Publisher's public key").fill("not a key")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#token-error")).to_contain_text("the publisher's key is invalid: expected the 43 characters")
    one.wrong.clear()  # the browser's own line about the answer
    expect(page.locator("#tokens tbody tr")).to_have_count(1)


def test_a_viewer_sees_tokens_and_makes_none(tab, fresh):
    one = tab(at=fresh)
    one.open(token=fresh.person("viewer"))
    one.turn_to("tokens")
    expect(one.page.locator("#tokens tbody tr")).to_have_count(1)
    expect(one.page.get_by_role("button", name="Make a token")).to_be_hidden()
    expect(one.page.get_by_role("button", name="Revoke…")).to_be_hidden()
