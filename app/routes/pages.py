"""Cursors, entity tags, and one list of rows as JSON, CSV or NDJSON."""

import base64
import binascii
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from app.errors import FieldFault, InvalidRequestError, NotAcceptableError
from app.polls import Standing
from app.routes.json_text import json_bytes

Format = Literal["application/json", "text/csv", "application/x-ndjson"]
FORMATS: tuple[Format, ...] = ("application/json", "text/csv", "application/x-ndjson")

Limit = Annotated[int, Query(ge=1, le=500, description="Rows in one page.")]
Cursor = Annotated[str | None, Query(max_length=100, description="`next_cursor` of the page before.")]


def encode_cursor(mark: UUID | int) -> str:
    """An opaque cursor that begins behind the row marked."""
    return base64.urlsafe_b64encode(str(mark).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: type[UUID] | type[int]) -> Any:
    """The mark of a cursor, None for the first page. Raises: InvalidRequestError at `cursor`."""
    if cursor is None:
        return None
    try:
        mark = kind(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii"))
    except (ValueError, binascii.Error) as error:
        fault = FieldFault("cursor", cursor, "is not a cursor of this list", "use next_cursor of a page, unchanged")
        raise InvalidRequestError([fault]) from error
    if isinstance(mark, int) and not 0 <= mark < 2**31:
        raise InvalidRequestError([FieldFault("cursor", cursor, "is not a cursor of this list", "use next_cursor")])
    return mark


class Name(NamedTuple):
    """What an answer about a study depends on beside its version."""

    path: str
    query: bytes
    media_type: str = "application/json"


def name_of(request: Request, media_type: str = "application/json") -> Name:
    """The name of the answer to a request."""
    return Name(request.scope["path"], request.scope["query_string"], media_type)


def version_shown(name: Name, standing: Standing) -> int:
    """The version of a study that an answer depends on: a ranking outlives versions that only count trials."""
    if "/candidates" not in name.path:
        return standing.version
    given = dict(parse_qsl(name.query.decode("latin-1"), keep_blank_values=True)) if name.query else {}
    return standing.version if given.get("view") == "all" else standing.ranked_version


def etag(name: Name, version: int) -> str:
    """The entity tag of an answer at a version of its study."""
    text = f"{name.path}?{name.query.decode('latin-1')} {name.media_type}"
    return f'"{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"'


def is_unchanged(given: str | None, tag: str) -> bool:
    """Whether If-None-Match says that the client has the answer with this tag.

    Source: RFC 9110, section 13.1.2 (weak comparison).
    """
    if given is None:
        return False
    return given.strip() == "*" or tag in {each.strip().removeprefix("W/") for each in given.split(",")}


def not_modified(tag: str) -> Response:
    """304: what you have is right."""
    return Response(status_code=304, headers=cache_headers(tag))


def cache_headers(tag: str) -> dict[str, str]:
    """Keep, but ask each time; answers of one caller are not for another."""
    return {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}


def negotiate(accept: str | None) -> Format:
    """The format that an Accept header prefers. Raises: NotAcceptableError. Source: RFC 9110, section 12.5.1."""
    if not accept or not accept.strip():
        return FORMATS[0]
    best = max(FORMATS, key=lambda each: _quality(accept, each))
    if _quality(accept, best) <= 0:
        raise NotAcceptableError(f"This resource is written as {', '.join(FORMATS)}.")
    return best


def _quality(accept: str, media_type: str) -> float:
    """The q-value of the most specific range that matches; 0 if none does."""
    found = (-1, 0.0)
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        ranges = {media_type: 2, f"{media_type.partition('/')[0]}/*": 1, "*/*": 0}
        if name in ranges:
            found = max(found, (ranges[name], _weight(parameters)))
    return found[1]


def _weight(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def next_link(name: Name, cursor: str | None) -> dict[str, str]:
    """A Link header to the next page, so that CSV and NDJSON can be paged through as well."""
    if cursor is None:
        return {}
    given = parse_qsl(name.query.decode("latin-1"), keep_blank_values=True)
    query = [(key, value) for key, value in given if key != "cursor"]
    return {"Link": f'<{quote(name.path)}?{urlencode([*query, ("cursor", cursor)])}>; rel="next"'}


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested members as dotted names; lists stay."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def select_fields(rows: Sequence[Mapping[str, Any]], fields: str | None) -> list[dict[str, Any]]:
    """Rows with the named members only: top-level ones as they are, deeper ones (`metrics.mean_ttft_ms`) flattened.

    Raises: InvalidRequestError for a name that no row has, unless there are no rows.
    """
    if not fields:
        return [dict(row) for row in rows]
    names = [name.strip() for name in fields.split(",") if name.strip()]
    flat = [{**flatten(row), **row} for row in rows]
    unknown = [name for name in names if flat and not any(name in row for row in flat)]
    if unknown:
        fault = f"no row has the field {unknown[0]!r}"
        raise InvalidRequestError([FieldFault("fields", fields, fault, "name fields of an item, separated by commas")])
    return [{name: row.get(name) for name in names} for row in flat]


def as_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Comma-separated values with a header line; nested members as dotted columns, null as an empty cell."""
    flat = [flatten(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if columns:
        writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in flat)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json_bytes(value).decode()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"  # a spreadsheet would run it as a formula
    return "" if value is None else value


def as_ndjson(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON document per line."""
    return b"".join(json_bytes(row) + b"\n" for row in rows)
