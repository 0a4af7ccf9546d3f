"""Manage the people who may use the server, and their roles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from annotated_types import Len
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StringConstraints

from server.control import people
from server.storage.schema.rows import Role
from server.web.admission import Route
from server.web.services import ByAdmin, UseServices, Viewer

router = APIRouter(prefix="/v1/access", tags=["operations"], route_class=Route)


class NewPerson(BaseModel):
    """A person whom an administrator lets in."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Len(1, 50), StringConstraints(pattern=r"^[A-Za-z0-9._@-]+$")]
    role: Role = "viewer"


class PersonView(BaseModel):
    """A person without their token's text."""

    name: str
    role: Role
    created: float
    revoked: bool


class CreatedPerson(PersonView):
    """A new person, with their token's text, which is sent this once."""

    token: str


@router.post("", status_code=201)
def create(services: UseServices, by: ByAdmin, wanted: NewPerson) -> CreatedPerson:
    """Give a person access: viewers read, operators also start and pause jobs and make enrolment tokens."""
    person, text = people.create(services.store, wanted.name, wanted.role, by)
    return CreatedPerson(**asdict(person), token=text)


@router.get("", dependencies=[Viewer])
def list_all(services: UseServices) -> list[PersonView]:
    """List all people, without their tokens."""
    return [PersonView(**asdict(person)) for person in people.everybody(services.store)]


@router.delete("/{name}", status_code=204)
def revoke(services: UseServices, by: ByAdmin, name: str) -> None:
    """Revoke a person's token."""
    people.revoke(services.store, name, by)
