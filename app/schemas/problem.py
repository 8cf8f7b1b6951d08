"""Problem documents: what every refusal looks like. Source: RFC 9457."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"


class FaultView(BaseModel):
    """One fault: where, what was given, what is wrong with it, what would be right.

    A fault of a trace adds the line, its field, the reason, and where it applies the numbers expected and found.
    """

    model_config = ConfigDict(extra="allow")

    pointer: str = Field(description="RFC 6901 pointer into the document, or the name of a query parameter or header.")
    value: Any = None
    fault: str
    remedy: str = ""
    caused_by: str | None = Field(None, description="Pointer of the misspelled key that explains this fault.")
    line: int | None = Field(None, description="Line of a trace, from 1.")
    field: str | None = Field(
        None, description="Field of that line; `row` for the whole line, `trace` for the whole file."
    )
    reason: str | None = Field(None, description="What is wrong with it.")


class Problem(BaseModel):
    """A refusal or a failure. `type` names its kind; further members depend on the kind."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    detail: str
    status: int | None = Field(None, description="The HTTP status; absent inside a study's body.")
    errors: list[FaultView] | None = Field(None, description="Every fault of the request, not only the first.")
