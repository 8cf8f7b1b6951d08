"""`python -m app.export_openapi`: the OpenAPI document, sorted and stable, as committed in openapi/openapi.json."""

import json
import sys

from app.main import create_app


def openapi_text() -> str:
    """The document as JSON text: keys sorted, two blanks of indent, a newline at the end."""
    return json.dumps(create_app().openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(openapi_text())
