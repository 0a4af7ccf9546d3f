"""The server's settings: `SPRY_*` variables, or a TOML file named by `SPRY_CONFIG`. Unsafe values are refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from edge_client.errors import SpryError
from edge_client.wire.addresses import checked_mirror
from server.addresses import networks
from server.errors import ServerConfigError
from server.mirrors import Addresses

CONFIG_VARIABLE = "SPRY_CONFIG"
SECRETS_VARIABLE = "SPRY_SECRETS_DIR"
SECRETS = Path("/run/secrets")
"""The folder of containers' secrets."""
SHORTEST_TOKEN = 20
_BUCKET = re.compile(r"s3://[^/]+(/.*)?")
DATABASES = ("sqlite", "postgresql")


class Settings(BaseSettings):
    """The server's settings: variables `SPRY_<FIELD>`, files `spry_<field>` in a secrets folder, or a TOML file's keys.

    Variables win over secrets, and those over the file.
    """

    model_config = SettingsConfigDict(env_prefix="SPRY_", extra="forbid")

    data_dir: Path = Field(
        default=Path("spry-data"), description="Where bundles, weights, updates and the database are kept."
    )
    database_url: str = Field(default="", description="postgresql://…; by default SQLite in the data folder.")
    blob_store: str = Field(
        default="",
        description="Where servers without a common folder keep bundles, weights and updates: postgresql, or "
        "s3://BUCKET/FOLDER; the data folder when left out.",
    )
    admin_token: SecretStr = Field(
        default=SecretStr(""), description="The administrators' token; by default made and kept in the data folder."
    )
    enrolments_per_minute: Annotated[int, Ge(1)] = Field(default=30, description="Enrolment attempts from one address.")
    retry_seconds: Annotated[float, Gt(0), Le(86_400)] = Field(
        default=30.0, description="About how long a device without a task waits, in seconds; longer in a large fleet."
    )
    check_ins_per_second: Annotated[float, Gt(0), Le(100_000)] = Field(
        default=200.0,
        description="About how many check-ins a second all devices make together; a large fleet waits longer.",
    )
    tick_seconds: Annotated[float, Gt(0), Le(60)] = Field(
        default=0.5, description="How often each worker looks for rounds to close."
    )
    background: bool = Field(
        default=True, description="Close rounds in this process; at least one server of a database must."
    )
    max_json_bytes: Annotated[int, Ge(1024)] = Field(default=1 << 20, description="Largest JSON message.")
    max_bundle_file_bytes: Annotated[int, Ge(1 << 20)] = Field(
        default=20 << 30, description="Largest file of a bundle."
    )
    max_held_out_bytes: Annotated[int, Ge(1024)] = Field(
        default=256 << 20, description="Largest file of held-out examples."
    )
    keep_days: Annotated[float, Gt(0)] = Field(
        default=30.0,
        description="Days for which refusals, and devices' tasks and bytes of closed rounds, are kept one by one.",
    )
    keep_audit_days: Annotated[float, Ge(1)] = Field(
        default=365.0, description="Days for which entries of the audit log are kept."
    )
    log_format: Literal["plain", "json"] = Field(
        default="plain", description="plain: lines for people; json: one object on each line."
    )
    patience_seconds: Annotated[float, Gt(0), Le(3600)] = Field(
        default=15.0,
        description="How long a request may take to arrive, in seconds; long bodies have a second more for each KiB.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses and networks of proxies whose X-Forwarded-For is believed, separated by commas.",
    )
    mirrors: Addresses = Field(
        default="", description="Mirrors that have the bundles too, separated by commas; devices ask them first."
    )
    publish_weights: str = Field(
        default="",
        description="Where the weights of each version are put for mirrors: a folder, an address that takes PUT, or "
        "s3://BUCKET/FOLDER; devices have them from the server when left out.",
    )
    metrics_token: SecretStr = Field(
        default=SecretStr(""), description="The token for /metrics; by default everybody may read it."
    )
    evaluation_runtime: str = Field(
        default="", description="The runtime that evaluates; by default the first installed."
    )

    @field_validator("admin_token", "metrics_token")
    @classmethod
    def _hard_to_guess(cls, token: SecretStr, field: ValidationInfo) -> SecretStr:
        value = token.get_secret_value()
        if value and (len(value) < SHORTEST_TOKEN or len(set(value)) < SHORTEST_TOKEN // 3):
            otherwise = "have one made" if field.field_name == "admin_token" else "let everybody read"
            raise ValueError(
                f"must be at least {SHORTEST_TOKEN} characters that nobody can guess; leave it out to {otherwise}"
            )
        return token

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, named: str) -> str:
        try:
            networks(named)
        except ValueError as error:
            raise ValueError(f"must be addresses or networks with commas between them: {error}") from None
        return named

    @field_validator("blob_store")
    @classmethod
    def _known_store(cls, name: str) -> str:
        if name and name != "postgresql" and not _BUCKET.fullmatch(name):
            raise ValueError(
                f"must be postgresql or s3://BUCKET/FOLDER, got {name!r}; leave it out for the data folder"
            )
        return name.rstrip("/")

    @field_validator("publish_weights")
    @classmethod
    def _known_place(cls, name: str) -> str:
        if "://" not in name or _BUCKET.fullmatch(name):
            return name.rstrip("/")
        try:
            return checked_mirror(name)
        except SpryError as error:
            raise ValueError(f"must be a folder, s3://BUCKET/FOLDER or an address that takes PUT: {error}") from None

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        kind = url.partition(":")[0].partition("+")[0]
        if url and kind not in DATABASES:
            raise ValueError(f"must start with one of {', '.join(DATABASES)}, got {kind!r}")
        return url.replace("postgresql://", "postgresql+psycopg://", 1)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then variables, then secrets, then the file of `SPRY_CONFIG`."""
        sources = [init_settings, env_settings]
        secrets, file = os.environ.get(SECRETS_VARIABLE), os.environ.get(CONFIG_VARIABLE)
        if secrets and not Path(secrets).is_dir():
            raise ServerConfigError(f"{SECRETS_VARIABLE} names {secrets}, which is no folder: correct or unset it")
        if secrets or SECRETS.is_dir():
            sources.append(SecretsSettingsSource(settings_cls, secrets_dir=secrets or SECRETS))
        if file and not Path(file).is_file():
            raise ServerConfigError(f"{CONFIG_VARIABLE} names {file}, which does not exist: correct or unset it")
        if file:
            try:
                sources.append(TomlConfigSettingsSource(settings_cls, file))
            except (ValueError, OSError) as error:
                raise ServerConfigError(f"{CONFIG_VARIABLE} names {file}, which is no TOML file: {error}") from None
        return tuple(sources)


def read_settings(**values: Any) -> Settings:
    """Read the settings, or raise one line for each that is refused."""
    try:
        return Settings(**values)
    except ValidationError as error:
        names = [".".join(map(str, problem["loc"])).upper() for problem in error.errors()]
        reasons = [problem["msg"].removeprefix("Value error, ") for problem in error.errors()]
        told = [f"SPRY_{name}: {reason}" for name, reason in zip(names, reasons, strict=True)]
        raise ServerConfigError("the server's settings are refused: " + "; ".join(told)) from None
