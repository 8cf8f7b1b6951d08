"""From the bytes of a request to a checked configuration: JSON, YAML, or multipart with a trace beside it.

reading = await read_submission(request)      # parts and plain dicts, or RefusedError
study = check(reading.document, reading.faults)   # SmartSearchConfig and what the client set, or RefusedError
"""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.config import settings
from app.extras import vizier_python
from app.routes.faults import Fault, faults
from app.routes.strict_json import Reading, UnreadableError, read_json
from app.routes.strict_yaml import read_yaml
from app.schemas.adapters import flatten
from app.schemas.block import mapping_at
from app.schemas.policies import policy_faults
from app.schemas.study import SmartSearchConfig, client_set, pointer_of

JSON_TYPES = frozenset({"application/json", "text/json", ""})
YAML_TYPES = frozenset({"application/yaml", "text/yaml", "application/x-yaml", "text/x-yaml"})
MULTIPART = "multipart/form-data"


class RefusedError(Exception):
    """The submission is refused: 422 with all its faults, 413 over a limit, 415 for another media type."""

    def __init__(self, status: int, found: list[Fault]) -> None:
        super().__init__(found[0].fault if found else "refused")
        self.status = status
        self.faults = found


@dataclass(slots=True)
class Submission:
    """A document as read, the faults of its text, and the trace that came with it, for the receiver to close."""

    document: Any
    faults: list[Fault] = field(default_factory=list)
    trace: UploadFile | None = None


@dataclass(frozen=True, slots=True)
class CheckedStudy:
    """A valid configuration, and the pointers of the fields that the client wrote."""

    config: SmartSearchConfig
    client_set: list[str]


def check(document: Any, found: list[Fault] | None = None) -> CheckedStudy:
    """The configuration, if neither its text nor its content has a fault.

    A fault of the text stands for the content's fault at the same place: it knows the cause.
    Raises: RefusedError, 422, with every fault.
    """
    found = list(found or ())
    try:
        config = SmartSearchConfig.model_validate(document)
    except ValidationError as error:
        places = {fault.pointer for fault in found}
        found += [fault for fault in faults(error) if fault.pointer not in places]
    else:
        found += _scaling_faults(document, config)
    found += _missing_extras(document)
    if found:
        raise RefusedError(422, found)
    return CheckedStudy(config, client_set(document))


def _scaling_faults(document: Any, config: SmartSearchConfig) -> list[Fault]:
    """Scaling policies that no goal can use, and predictors that this installation lacks, each at the client's place."""
    home = flatten(document).home
    return [
        Fault(
            pointer=pointer_of(home(tuple(each.pointer.split("/")[1:]))),
            value=each.value,
            fault=each.fault,
            remedy=each.remedy,
        )
        for each in policy_faults(config)
    ]


def _missing_extras(document: Any) -> list[Fault]:
    """An algorithm that this installation lacks is refused, never answered by another one."""
    if mapping_at(document, "sweep").get("algorithm") != "vizier" or vizier_python() is not None:
        return []
    fault = "needs the optional extra `vizier`, which this service does not have"
    remedy = "install requirements-vizier.lock (docs/configuration/sweep.md), or use auto or random"
    return [Fault(pointer="/sweep/algorithm", value="vizier", fault=fault, remedy=remedy)]


def read_document(media_type: str, body: bytes) -> Reading:
    """Reads a JSON or YAML document of at most `max_config_bytes`.

    Raises: RefusedError: 413 too large, 415 other media type, 422 unreadable.
    """
    if len(body) > settings().max_config_bytes:
        raise _too_large("the configuration", settings().max_config_bytes)
    kind = media_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | YAML_TYPES and not kind.endswith(("+json", "+yaml")):
        remedy = "send application/json, application/yaml or multipart/form-data"
        raise RefusedError(
            415, [Fault(pointer="", value=kind[:100], fault="is not a media type of a study", remedy=remedy)]
        )
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: byte {error.start} is {body[error.start]:#04x}"
        raise RefusedError(422, [Fault(pointer="", value=None, fault=fault, remedy="encode it as UTF-8")]) from error
    try:
        return read_yaml(text) if kind in YAML_TYPES or kind.endswith("+yaml") else read_json(text)
    except UnreadableError as error:
        raise RefusedError(422, [error.fault]) from error


async def read_submission(request: Request) -> Submission:
    """Reads the body of `POST /studies`, whatever its media type, within the limits.

    Raises: RefusedError.
    """
    if is_multipart(request):
        return await _read_parts(request)
    media_type = request.headers.get("content-type", "")
    body = bytearray()
    async for chunk in _bounded(request.stream(), settings().max_config_bytes, "the configuration"):
        body += chunk
    reading = read_document(media_type, bytes(body))
    return Submission(reading.document, reading.faults)


def is_multipart(request: Request) -> bool:
    """Whether the body is a form."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART


async def read_trace_part(request: Request) -> UploadFile:
    """The one file of a form; close it after use.

    Raises: RefusedError.
    """
    form = await _read_form(request, "send the file as one part named trace")
    files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
    if len(files) == 1 and len(form.multi_items()) == 1:
        return files[0]
    await form.close()
    fault = f"has {len(files)} files and {len(form.multi_items()) - len(files)} fields; one file is read"
    remedy = "send one part named trace, with a filename; give name, format, time_unit and block_size in the query"
    raise RefusedError(422, [Fault(pointer="", value=None, fault=fault, remedy=remedy)])


async def _read_form(request: Request, remedy: str) -> FormData:
    """The parts of a form, files on disk when they are large."""
    limit = settings().max_trace_bytes + settings().max_config_bytes
    stream = _bounded(request.stream(), limit, "the submission")
    try:
        parser = MultiPartParser(
            request.headers, stream, max_files=2, max_fields=2, max_part_size=settings().max_config_bytes
        )
        return await parser.parse()
    except (MultiPartException, KeyError) as error:
        fault = f"is not a multipart form: {getattr(error, 'message', 'the boundary is missing')}"
        raise RefusedError(422, [Fault(pointer="", value=None, fault=fault, remedy=remedy)]) from error


async def _read_parts(request: Request) -> Submission:
    form = await _read_form(request, "send the parts config and trace")
    try:
        _check_parts(form)
        reading = await _config_part(form["config"])
    except RefusedError:
        await form.close()
        raise
    trace = form.get("trace")
    return Submission(reading.document, reading.faults, trace if isinstance(trace, UploadFile) else None)


def _check_parts(form: FormData) -> None:
    names = [name for name, _ in form.multi_items()]
    found = []
    if "config" not in names:
        found.append(
            Fault(pointer="", value=None, fault="the part config is missing", remedy="send a part named config")
        )
    for name in sorted(set(names)):
        if name not in ("config", "trace") or names.count(name) > 1:
            fault = f"the part {name[:100]!r} is {'repeated' if names.count(name) > 1 else 'unknown'}"
            found.append(Fault(pointer="", value=None, fault=fault, remedy="send config and trace, once each"))
    if "trace" in names and not isinstance(form["trace"], UploadFile):
        remedy = "give the part a filename"
        found.append(Fault(pointer="", value=None, fault="the part trace is not a file", remedy=remedy))
    if found:
        raise RefusedError(422, found)


async def _config_part(part: UploadFile | str) -> Reading:
    if isinstance(part, str):
        return read_document(_guess(part), part.encode())
    body = await part.read(settings().max_config_bytes + 1)
    await part.close()
    kind = part.content_type or ""
    if (part.filename or "").lower().endswith((".yaml", ".yml")):
        kind = "application/yaml"
    elif kind in ("", "application/octet-stream", "text/plain"):
        kind = _guess(body[:200].decode("utf-8", "replace"))
    return read_document(kind, body)


def _guess(start: str) -> str:
    """A part without a media type is JSON if it opens like an object, else YAML."""
    return "application/json" if start.lstrip("\ufeff \t\r\n").startswith("{") else "application/yaml"


async def _bounded(stream: AsyncIterator[bytes], limit: int, what: str) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size > limit:
            raise _too_large(what, limit)
        yield chunk


def _too_large(what: str, limit: int) -> RefusedError:
    remedy = f"send at most {limit} bytes"
    return RefusedError(
        413, [Fault(pointer="", value=None, fault=f"{what} is larger than {limit} bytes", remedy=remedy)]
    )
