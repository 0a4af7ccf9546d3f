"""Test where settings come from, and which of them wins."""

import pytest

from server.errors import ServerConfigError
from server.settings import read_settings

TOKEN = "a-token-that-nobody-would-guess"


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "spry_admin_token").write_text(TOKEN + "\n")
    (folder / "spry_database_url").write_text("postgresql://spry:a-password@db/spry\n")
    (folder / "of_another_program").write_text("?")
    monkeypatch.setenv("SPRY_SECRETS_DIR", str(folder))
    for name in ("SPRY_ADMIN_TOKEN", "SPRY_DATABASE_URL", "SPRY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_secrets_are_files(secrets):
    settings = read_settings()
    assert settings.admin_token.get_secret_value() == TOKEN
    assert settings.database_url == "postgresql+psycopg://spry:a-password@db/spry"
    assert TOKEN not in repr(settings)


def test_variables_win_over_secrets_and_those_over_the_file(secrets, tmp_path, monkeypatch):
    file = tmp_path / "spry.toml"
    file.write_text('admin_token = "another-token-that-nobody-guesses"\nretry_seconds = 7\nlog_format = "json"\n')
    monkeypatch.setenv("SPRY_CONFIG", str(file))
    monkeypatch.setenv("SPRY_RETRY_SECONDS", "9")
    settings = read_settings()
    assert settings.admin_token.get_secret_value() == TOKEN
    assert (settings.retry_seconds, settings.log_format) == (9, "json")


@pytest.mark.parametrize("setting", ["admin_token", "metrics_token"])
@pytest.mark.parametrize("guessed", ["short", "aaaaaaaaaaaaaaaaaaaaaaaa", "ababababababababababababab"])
def test_a_secret_that_is_refused_is_not_shown(secrets, setting, guessed):
    (secrets / "spry_admin_token").unlink(missing_ok=True)
    (secrets / f"spry_{setting}").write_text(guessed)
    told = f"SPRY_{setting.upper()}: must be at least 20 characters that nobody can guess; leave it out to"
    with pytest.raises(ServerConfigError, match=told) as refused:
        read_settings()
    assert guessed not in str(refused.value)
    (secrets / f"spry_{setting}").write_text(TOKEN)
    assert getattr(read_settings(), setting).get_secret_value() == TOKEN


@pytest.mark.parametrize("variable", ["SPRY_SECRETS_DIR", "SPRY_CONFIG"])
def test_what_is_not_there(secrets, variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    with pytest.raises(ServerConfigError, match=f"{variable} names"):
        read_settings()
