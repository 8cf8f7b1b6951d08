"""The formats in which a deployment can be had, and which of them fit it."""

from collections.abc import Callable
from typing import Literal

from app.errors import FieldFault, InvalidRequestError
from app.render import dynamo, sglang, trtllm, vllm
from app.render.facts import Facts
from app.schemas.deployment import Deployment

Format = Literal["vllm", "sglang", "trtllm", "dynamo"]
MEDIA_TYPES: dict[Format, str] = {
    "vllm": "text/plain",
    "sglang": "text/plain",
    "trtllm": "text/plain",
    "dynamo": "application/yaml",
}
_RENDERERS: dict[Format, Callable[[Deployment, Facts], str]] = {
    "vllm": vllm.render,
    "sglang": sglang.render,
    "trtllm": trtllm.render,
    "dynamo": dynamo.render,
}


def render(deployment: Deployment, facts: Facts, wanted: Format) -> str:
    """The deployment's launch text.

    Raises: InvalidRequestError at `format` for the commands of another engine than the deployment's.
    """
    if wanted not in ("dynamo", deployment.backend):
        fault = f"does not fit: the candidate runs on {deployment.backend}"
        remedy = f"use dynamo or {deployment.backend}"
        raise InvalidRequestError([FieldFault("format", wanted, fault, remedy)])
    return _RENDERERS[wanted](deployment, facts)
