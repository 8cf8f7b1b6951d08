"""How `POST /studies` reads in the OpenAPI document: its body is read by hand, so FastAPI cannot know it."""

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

SUBMISSION = SubmissionEntry(
    request={
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": _CONFIG} for media_type in ("application/json", *YAML_TYPES)},
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
