"""JSON text for responses: fast, strict, and with times in one form."""

from typing import Any

import orjson
from starlette.responses import Response

_OPTIONS = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z


def json_bytes(document: Any) -> bytes:
    """UTF-8 JSON; NaN and infinities become null, times RFC 3339 in UTC, ids and enums strings."""
    return orjson.dumps(document, default=_default, option=_OPTIONS)


def printable(document: Any) -> Any:
    """The document with halves of surrogate pairs replaced, in keys too: a client's text may come back in a problem."""
    if isinstance(document, str):
        return document.encode("utf-8", "replace").decode()
    if isinstance(document, dict):
        return {printable(key): printable(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [printable(each) for each in document]
    return document


def _default(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(type(value).__name__)


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document as a response; not validated again, which would take longer than everything else in a poll."""
    return Response(json_bytes(document), status, headers, "application/json")
