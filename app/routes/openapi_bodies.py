"""How `POST /studies` and `POST /traces` read in the OpenAPI document: their bodies are read by hand."""

from typing import Any, NamedTuple

_CONFIG = {"$ref": "#/components/schemas/SmartSearchConfig"}
YAML_TYPES = ("application/yaml", "text/yaml", "application/x-yaml")


class SubmissionEntry(NamedTuple):
    """Parts of the route's OpenAPI entry."""

    request: dict[str, Any]
    responses: dict[int | str, dict[str, Any]]


_LOCATION = {"Location": {"schema": {"type": "string"}, "description": "The study."}}
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until it is worth asking again."}}
_REPLAYED = {
    "Idempotency-Replayed": {"schema": {"type": "string", "enum": ["true"]}, "description": "An earlier study."}
}

_FILE = {"type": "string", "format": "binary"}
_CONFIG_AND_TRACE = {
    "type": "object",
    "required": ["config"],
    "properties": {"config": _CONFIG, "trace": {**_FILE, "description": "Its rows become the `trace_path`."}},
}

SUBMISSION = SubmissionEntry(
    request={
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": _CONFIG} for media_type in ("application/json", *YAML_TYPES)}
            | {"multipart/form-data": {"schema": _CONFIG_AND_TRACE}},
        }
    },
    responses={
        202: {"description": "Accepted", "headers": _LOCATION | _RETRY},
        200: {
            "description": "The plan (`dry_run`), or the earlier study (`Idempotency-Key`, `reuse`).",
            "headers": _REPLAYED,
            "content": {
                "application/json": {
                    "schema": {
                        "anyOf": [{"$ref": "#/components/schemas/StudyView"}, {"$ref": "#/components/schemas/Plan"}]
                    }
                }
            },
        },
    },
)

_TRACE_TYPES = ("application/x-ndjson", "application/jsonl", "text/csv", "application/gzip", "application/zstd")

TRACE_UPLOAD = SubmissionEntry(
    request={
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": _FILE} for media_type in (*_TRACE_TYPES, "application/octet-stream")}
            | {
                "multipart/form-data": {
                    "schema": {"type": "object", "required": ["trace"], "properties": {"trace": _FILE}}
                }
            },
        }
    },
    responses={
        201: {
            "description": "Stored, now or before",
            "headers": {"Location": {"schema": {"type": "string"}, "description": "The trace."}},
        }
    },
)
