"""API keys: who calls, for which project, with which scopes.

A key reads `spica_<id>_<secret>`; the id finds the row, the secret is compared by its SHA-256 in constant time. Without
any key the service answers only callers on loopback, who then may do everything in the project `default`.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.config import settings
from app.db.tables import KeyRow
from app.errors import FieldFault, ForbiddenError, InvalidRequestError, NotFoundError, UnauthenticatedError

SCOPES = ("read", "submit", "admin")
DEFAULT_PROJECT = "default"
_PREFIX = "spica"
_IMPLIED = {"admin": frozenset(SCOPES), "submit": frozenset({"submit", "read"}), "read": frozenset({"read"})}


class Caller(NamedTuple):
    """Who calls. `key_id` is None for an anonymous caller on loopback."""

    project: str
    scopes: frozenset[str]
    key_id: str | None = None

    @property
    def sees_all_projects(self) -> bool:
        """An admin key looks into every project."""
        return "admin" in self.scopes and self.key_id is not None

    @property
    def visible_project(self) -> str | None:
        """The project whose things the caller sees; None for all of them."""
        return None if self.sees_all_projects else self.project

    def require(self, scope: str) -> None:
        """Raises: ForbiddenError unless the caller has the scope."""
        if scope not in self.scopes:
            raise ForbiddenError(f"This API key lacks the scope {scope!r}.")


def create_key(db: Session, project: str, name: str, scopes: Sequence[str]) -> tuple[KeyRow, str]:
    """A new key and its text, which is kept nowhere and cannot be shown again.

    Raises: InvalidRequestError for an unknown scope or an empty project.
    """
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes or not project:
        fault = f"unknown scopes: {', '.join(unknown)}" if unknown else "a project and at least one scope are needed"
        raise InvalidRequestError([FieldFault("scopes", list(scopes), fault, f"use some of {', '.join(SCOPES)}")])
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = KeyRow(id=key_id, project=project, name=name, scopes=sorted(set(scopes)), secret_sha256=_hash(secret))
    db.add(row)
    db.flush()
    return row, f"{_PREFIX}_{key_id}_{secret}"


def list_keys(db: Session) -> list[KeyRow]:
    """All keys, oldest first, revoked ones too."""
    return list(db.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id)))


def revoke_key(db: Session, key_id: str) -> None:
    """Make a key worthless at once. Raises: NotFoundError."""
    revoked = update(KeyRow).where(KeyRow.id == key_id, KeyRow.revoked_at.is_(None)).values(revoked_at=func.now())
    if db.scalar(revoked.returning(KeyRow.id)) is None:
        raise NotFoundError(f"There is no such key, or it is revoked: {key_id}.")


def has_keys(db: Session) -> bool:
    """Whether any valid key exists."""
    return bool(db.scalar(select(select(KeyRow.id).where(KeyRow.revoked_at.is_(None)).exists())))


def identify(db: Session, authorization: str | None, client_host: str | None) -> Caller:
    """The caller behind an Authorization header.

    Raises: UnauthenticatedError, in the same words for an unknown, a wrong and a revoked key.
    """
    if authorization is None:
        return anonymous(client_host, has_keys=has_keys(db))
    key_id = claimed_key_id(authorization)
    return holder(authorization, db.get(KeyRow, key_id) if key_id is not None else None)


def anonymous(client_host: str | None, *, has_keys: bool) -> Caller:
    """A caller without a key. Raises: UnauthenticatedError unless none is needed."""
    if has_keys:
        raise UnauthenticatedError
    if not settings().allow_anonymous and not is_loopback(client_host):
        raise UnauthenticatedError(
            "This service has no API keys yet, so it answers callers on its own machine only. "
            "Create one there: python -m app.keys create"
        )
    return Caller(DEFAULT_PROJECT, frozenset(SCOPES))


class StoredKey(Protocol):
    """What is kept of a key: a KeyRow, or the same columns."""

    @property
    def id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def scopes(self) -> list[str]: ...
    @property
    def secret_sha256(self) -> bytes: ...
    @property
    def revoked_at(self) -> datetime | None: ...


def claimed_key_id(authorization: str) -> str | None:
    """The id of the key that a header claims to hold; None if it has not the form of a key."""
    scheme, _, text = authorization.partition(" ")
    prefix, _, rest = text.strip().partition("_")
    key_id = rest.partition("_")[0]
    is_formed = scheme.lower() == "bearer" and prefix == _PREFIX and key_id.isalnum() and key_id.isascii()
    return key_id if is_formed else None


def holder(authorization: str, key: StoredKey | None) -> Caller:
    """The caller that a header's secret proves to hold `key`. Raises: UnauthenticatedError."""
    secret = authorization.strip().split("_", 2)[-1]
    # Compared even when there is no key, so that the time taken does not tell which ids exist.
    is_right = hmac.compare_digest(_hash(secret), key.secret_sha256 if key is not None else bytes(32))
    if key is None or not is_right or key.revoked_at is not None:
        raise UnauthenticatedError("The API key is not valid.")
    return Caller(key.project, frozenset().union(*(_IMPLIED[scope] for scope in key.scopes)), key.id)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


@lru_cache(maxsize=1024)
def is_loopback(host: str | None) -> bool:
    """Whether an address is this machine's own; None stands for a Unix socket."""
    if host is None:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
