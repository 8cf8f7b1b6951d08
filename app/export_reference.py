"""`python -m app.export_reference`: every endpoint and every field of an answer, as committed in docs/reference.md.

Written from the OpenAPI document, so that it cannot say anything else. The fields of a configuration have pages of
their own in docs/configuration.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from app.main import create_app

Json = Mapping[str, Any]

_HEAD = """# Reference

Written from the OpenAPI document by `make openapi`; a test compares. Bodies are JSON unless said otherwise, errors
`application/problem+json` ([Problem](#problem)). Where keys exist, every request but `GET /healthz` and `GET /readyz`
carries `Authorization: Bearer KEY`; 401 and 403 mean a missing key or scope, 503 a part that is away. The fields of a
configuration are in [configuration](configuration/README.md), statuses and reasons in [states](states.md).
"""
_CONFIGURATION = frozenset(
    (
        "Baseline",
        "BaselineRole",
        "BaselineRouter",
        "Goal",
        "SearchSpace",
        "Sla",
        "SmartSearchConfig",
        "Sweep",
        "Workload",
    )
)
_COMMON = frozenset(("401", "403", "503"))


def reference_text() -> str:
    """The page, in Markdown."""
    document = create_app().openapi()
    return "\n".join([_HEAD, *_endpoints(document), *_models(document["components"]["schemas"])])


def _endpoints(document: Json) -> Iterator[str]:
    yield "## Endpoints\n"
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            yield f"### `{method.upper()} {path}`\n"
            yield " ".join(operation.get("description", operation.get("summary", "")).split()) + "\n"
            yield from _parameters(operation.get("parameters", []))
            yield from _body(operation.get("requestBody"))
            yield from _responses(operation["responses"])


def _parameters(parameters: list[Json]) -> Iterator[str]:
    shown = [each for each in parameters if each["in"] != "path"]
    if shown:
        yield "| parameter | in | type | default | |\n| --- | --- | --- | --- | --- |"
        for each in shown:
            default = each["schema"].get("default")
            cells = (
                f"`{each['name']}`",
                each["in"],
                _type(each["schema"]),
                "" if default is None else f"`{default}`",
                each.get("description", ""),
            )
            yield _row(cells)
        yield ""


def _body(body: Json | None) -> Iterator[str]:
    if body is not None:
        kinds = [f"`{media_type}`: {_type(content['schema'])}" for media_type, content in body["content"].items()]
        yield f"Body: {'; '.join(kinds)}\n"


def _responses(responses: Json) -> Iterator[str]:
    yield "| status | body | |\n| --- | --- | --- |"
    for status, answer in sorted(responses.items()):
        if status not in _COMMON:
            content = answer.get("content", {})
            kinds = [f"`{name}` {_type(each.get('schema', {}))}".strip() for name, each in content.items()]
            yield _row((status, ", ".join(kinds), answer["description"]))
    yield ""


def _models(schemas: Json) -> Iterator[str]:
    yield "## Models\n"
    for name, schema in sorted(schemas.items()):
        if name in _CONFIGURATION:
            continue
        yield f"### {name}\n"
        yield " ".join(schema.get("description", "").split()) + "\n"
        if "enum" in schema:
            yield f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.\n"
        if fields := schema.get("properties"):
            yield "| field | type | |\n| --- | --- | --- |"
            for field, each in fields.items():
                yield _row((f"`{field}`", _type(each), each.get("description", "")))
            yield ""


def _type(schema: Json) -> str:
    """A schema in a few words; models as links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        where = "configuration/README.md" if name in _CONFIGURATION else f"#{name.lower()}"
        return f"[{name}]({where})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", ""))
    if kind == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        inner = _type(schema["additionalProperties"])
        return f"object of {inner}" if inner else "object"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in (("minimum", "≥"), ("maximum", "≤")) if name in schema]
    return " ".join([schema.get("format", kind), *bounds])


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(reference_text())
