"""The one map from error to HTTP status: every refusal leaves here as application/problem+json.

Source: RFC 9457. A detail never carries a traceback, a path of this machine, SQL or a key.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from app import errors
from app.db.engine import cause_of, is_away, is_full
from app.routes.bodies import RefusedError
from app.routes.faults import json_safe
from app.routes.json_text import json_bytes, printable
from app.schemas.problem import MEDIA_TYPE

log = structlog.get_logger()
RETRY_AFTER_S = 2


class Kind(NamedTuple):
    """How an error looks over HTTP. `slug` ends its type URI."""

    status: int
    slug: str
    title: str


_KINDS: dict[type[errors.SpicaError], Kind] = {
    errors.NotFoundError: Kind(404, "not-found", "Not found"),
    errors.KeyReuseError: Kind(409, "idempotency-key-reused", "Idempotency-Key used with another body"),
    errors.TransitionRefusedError: Kind(409, "conflict", "Not possible in this state"),
    errors.ConflictError: Kind(409, "conflict", "Not possible in this state"),
    errors.InvalidRequestError: Kind(422, "invalid-request", "The request is not valid"),
    errors.TooLargeError: Kind(413, "too-large", "Too large"),
    errors.QuotaError: Kind(429, "quota", "Too many at a time"),
    errors.UnauthenticatedError: Kind(401, "unauthenticated", "An API key is needed"),
    errors.ForbiddenError: Kind(403, "forbidden", "Not allowed with this API key"),
    errors.UnsupportedMediaError: Kind(415, "unsupported-media-type", "Media type not supported"),
    errors.NotAcceptableError: Kind(406, "not-acceptable", "No acceptable media type"),
    errors.UnavailableError: Kind(503, "unavailable", "Not available right now"),
    errors.RegressionError: Kind(422, "regression", "Worse than the baseline"),
}
_REFUSED = {
    408: ("body-too-slow", "The body came too slowly"),
    413: ("too-large", "Too large"),
    415: ("unsupported-media-type", "Media type not supported"),
    422: ("invalid-configuration", "The configuration is not valid"),
}
_DISK_FULL = Kind(507, "disk-full", "The service's disk is full")
_NOTHING_KEPT = "Nothing of what was sent is kept; try again when the operator has made room."
_STATUS_TITLES = {400: "Bad request", 404: "Not found", 405: "Method not allowed"}


def problem_response(
    kind: Kind,
    detail: str,
    *,
    faults: Sequence[Mapping[str, Any]] = (),
    extensions: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document as a response."""
    document: dict[str, Any] = {
        "type": f"urn:spica:problem:{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        **(extensions or {}),
    }
    if faults:
        document["errors"] = list(faults)
    sent = dict(headers or {})
    if kind.status in (429, 503):
        sent.setdefault("Retry-After", str(RETRY_AFTER_S))
    if kind.status == 401:
        sent.setdefault("WWW-Authenticate", "Bearer")
    return Response(json_bytes(printable(document)), kind.status, sent, MEDIA_TYPE)


def _spica_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.SpicaError)
    kind = next(_KINDS[base] for base in type(error).__mro__ if base in _KINDS)
    found: list[dict[str, Any]] = []
    if isinstance(error, errors.InvalidRequestError):
        found = [
            {
                "pointer": each.pointer,
                "value": json_safe(each.value),
                "fault": each.fault,
                "remedy": each.remedy,
                **each.about,
            }
            for each in error.faults
        ]
    return problem_response(kind, error.detail, faults=found, extensions=error.extensions)


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    slug, title = _REFUSED[error.status]
    found = [fault.model_dump(exclude_none=False) for fault in error.faults]
    detail = "; ".join(f"{fault.pointer or 'the document'}: {fault.fault}" for fault in error.faults[:3])
    more = len(error.faults) - 3
    detail = f"{detail}; and {more} more" if more > 0 else detail
    return problem_response(Kind(error.status, slug, title), detail, faults=found)


def _invalid_parameters(_request: Request, error: Exception) -> Response:
    """Faulty query parameters and headers are 422; an id that cannot be one names nothing, hence 404."""
    assert isinstance(error, RequestValidationError)
    lines = error.errors()
    if any(line["loc"][0] == "path" for line in lines):
        return problem_response(_KINDS[errors.NotFoundError], "There is no such resource.")
    found = [
        {
            "pointer": str(line["loc"][-1]),
            "value": json_safe(line.get("input")),
            "fault": line["msg"].replace("Input should be", "should be", 1),
            "remedy": f"correct the {line['loc'][0]} parameter {line['loc'][-1]}",
        }
        for line in lines
    ]
    detail = "; ".join(f"{fault['pointer']}: {fault['fault']}" for fault in found[:3])
    return problem_response(_KINDS[errors.InvalidRequestError], detail, faults=found)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = _STATUS_TITLES.get(error.status_code, "Refused")
    kind = Kind(error.status_code, title.lower().replace(" ", "-"), title)
    headers = error.headers
    if error.status_code == 405:
        # The framework names the methods of the one route that it looked at; a path can have several routes.
        headers = {**(headers or {}), "Allow": ", ".join(sorted(_allowed(request)) or ["GET"])}
    return problem_response(kind, str(error.detail), headers=headers)


def _allowed(request: Request) -> set[str]:
    """The methods that the documented routes of a request's path take."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    found = (item for path, item in paths.items() if compile_path(path)[0].fullmatch(request.url.path))
    return {method.upper() for item in found for method in item}


def _database_error(request: Request, error: Exception) -> Response:
    if is_full(error):
        log.error("database_full", path=request.url.path)
        return problem_response(_DISK_FULL, f"The database has no room left. {_NOTHING_KEPT}")
    if not is_away(error):
        return _unforeseen(request, error)
    log.warning("database_away", error=cause_of(error))
    return problem_response(_KINDS[errors.UnavailableError], "The database is not reachable right now; try again soon.")


def _unstorable(_request: Request, _error: Exception) -> Response:
    detail = "A text or number of the request cannot be stored (such as the character U+0000)."
    return problem_response(_KINDS[errors.InvalidRequestError], detail)


def _unforeseen(request: Request, error: Exception) -> Response:
    log.error("unforeseen_error", path=request.url.path, error=type(error).__name__, exc_info=error)
    return problem_response(Kind(500, "internal", "Internal error"), "An unexpected error; the service's log has it.")


def _system_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return _unforeseen(request, error)
    log.error("disk_full", path=request.url.path)
    return problem_response(_DISK_FULL, _NOTHING_KEPT)


def add_handlers(app: FastAPI) -> None:
    """Register every handler."""
    for error, handler in (
        (errors.SpicaError, _spica_error),
        (RefusedError, _refused),
        (RequestValidationError, _invalid_parameters),
        (HTTPException, _http_error),
        (DBAPIError, _database_error),
        (psycopg.Error, _database_error),
        (PoolTimeoutError, _database_error),
        (DataError, _unstorable),
        (OSError, _system_error),
        (Exception, _unforeseen),
    ):
        app.add_exception_handler(error, handler)


Responses = dict[int | str, dict[str, Any]]
UNCHANGED: Responses = {304: {"description": "Unchanged since the ETag given"}}


def problems(*statuses: int) -> Responses:
    """The problem responses of a route, for its OpenAPI entry; 401, 403 and 503 go without saying."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    shared = {
        408: "The body came too slowly",
        422: "The request is not valid",
        507: _DISK_FULL.title,
    }  # kinds share a status
    titles = {kind.status: kind.title for kind in _KINDS.values()} | shared
    return {
        status: {"description": titles.get(status, "Refused"), "content": content}
        for status in sorted({*statuses, 401, 403, 422, 503})
    }
