"""Errors of the service, named after the rule that was broken; `app.routes.problems` gives each its HTTP status.

SpicaError
+-- NotFoundError            no such thing, or not in the caller's project
+-- ConflictError            the thing is in a state that forbids this
|   +-- KeyReuseError        one Idempotency-Key, two bodies
|   +-- TransitionRefusedError  a status move whose guard did not hold
+-- InvalidRequestError      a field is wrong; carries faults with JSON pointers
+-- TooLargeError            beyond a size limit
+-- QuotaError               beyond a limit that time heals
+-- UnauthenticatedError     no key, or not a valid one
+-- ForbiddenError           a key without the needed scope
+-- UnsupportedMediaError    a body in a format we do not read
+-- NotAcceptableError       an answer in a format we do not write
+-- UnavailableError         a part of the service is away; try again later
+-- RegressionError          a compared study is worse than allowed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One fault of one field: where (JSON pointer, or query parameter), what was given, what is wrong, what would do.

    about: further members of the answer, such as the line of a trace.
    """

    pointer: str
    value: object
    fault: str
    remedy: str = ""
    about: Mapping[str, object] = field(default_factory=dict)


class SpicaError(Exception):
    """Base of all errors a client may see. The class docstring's first line is the default sentence."""

    def __init__(self, detail: str = "", **extensions: object) -> None:
        self.detail = detail or (type(self).__doc__ or "").splitlines()[0]
        self.extensions: Mapping[str, object] = extensions
        super().__init__(self.detail)


class NotFoundError(SpicaError):
    """There is no such resource."""


class ConflictError(SpicaError):
    """The resource is in a state that does not allow this."""


class KeyReuseError(ConflictError):
    """This Idempotency-Key was used with another body."""


class TransitionRefusedError(ConflictError):
    """The status has moved on in the meantime."""


class InvalidRequestError(SpicaError):
    """The request is not valid."""

    def __init__(self, faults: Sequence[FieldFault], detail: str = "") -> None:
        super().__init__(detail or "; ".join(f"{fault.pointer}: {fault.fault}" for fault in faults[:3]))
        self.faults = tuple(faults)


class TooLargeError(SpicaError):
    """The request is larger than this service takes."""


class QuotaError(SpicaError):
    """Too many at a time; wait until some have ended."""


class UnauthenticatedError(SpicaError):
    """An API key is needed: Authorization: Bearer <key>."""


class ForbiddenError(SpicaError):
    """This API key lacks the scope for this."""


class UnsupportedMediaError(SpicaError):
    """The body's media type is not one this resource reads."""


class NotAcceptableError(SpicaError):
    """None of the media types asked for can be written."""


class UnavailableError(SpicaError):
    """A part of the service is not reachable right now."""


class RegressionError(SpicaError):
    """The study is worse than its baseline by more than the tolerance."""
