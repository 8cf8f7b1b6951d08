"""What routes are handed: a door to the database that checks who calls, the planner, the waker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session

from app.auth import Caller, identify
from app.db.engine import transaction
from app.schemas.study import SmartSearchConfig
from app.wake import Waker

Planner = Callable[[SmartSearchConfig, Any], dict[str, Any]]
"""Configuration and trace summary to the plan as a JSON document; raises InvalidRequestError."""

_bearer = HTTPBearer(auto_error=False, description="An API key; not needed on loopback while no key exists.")


BearerKey = Annotated[Any, Security(_bearer)]
"""Puts the key into the OpenAPI document; the header itself is read where it is checked."""


class Access(NamedTuple):
    """An open transaction, and the caller on whose behalf it is."""

    db: Session
    caller: Caller


class Door:
    """Opens a transaction for a caller with a scope.

    Not a session handed in by the framework: a connection is held only while a thread works with it, so waiting
    requests can never starve working ones of connections.
    """

    def __init__(self, request: Request) -> None:
        self._authorization = request.headers.get("authorization")
        self._host = request.client.host if request.client else None

    @contextmanager
    def open(self, scope: str) -> Iterator[Access]:
        """Raises: UnauthenticatedError, ForbiddenError."""
        with transaction() as db:
            caller = identify(db, self._authorization, self._host)
            caller.require(scope)
            yield Access(db, caller)

    def caller(self, scope: str) -> Caller:
        """The caller alone. Raises: UnauthenticatedError, ForbiddenError."""
        with self.open(scope) as access:
            return access.caller


# Both are async because FastAPI runs plain functions in a thread, which costs more than they do.
async def _door(request: Request, _key: BearerKey) -> Door:
    return Door(request)


async def _planner(request: Request) -> Planner:
    return cast(Planner, request.app.state.planner)


async def _waker(request: Request) -> Waker:
    return cast(Waker, request.app.state.waker)


DoorDep = Annotated[Door, Depends(_door)]
PlannerDep = Annotated[Planner, Depends(_planner)]
WakerDep = Annotated[Waker, Depends(_waker)]
