"""Faults of a trace: each with its line and field, the first twenty kept, all of them counted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.errors import FieldFault, InvalidRequestError

MAX_NAMED = 20
_MAX_VALUE_CHARS = 100


class RowFault(NamedTuple):
    """One fault. line: 1-based, None for the whole file; field: empty for the whole line; about: further numbers."""

    line: int | None
    field: str
    reason: str
    remedy: str
    value: object = None
    about: Mapping[str, object] = {}


class TraceRefusedError(InvalidRequestError):
    """The trace has faults."""


@dataclass(slots=True)
class Faults:
    """Collects faults in the order of their lines. num_rows: rows with at least one; about: what the answer adds."""

    named: list[RowFault] = field(default_factory=list)
    num_rows: int = 0
    about: dict[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.num_rows > 0

    def add_row(self, found: Iterable[RowFault]) -> None:
        """All faults of one row."""
        self.add(found, 1)

    def add(self, found: Iterable[RowFault], num_rows: int) -> None:
        """Faults of so many rows; of `found` only as many are taken as are still named."""
        self.num_rows += num_rows
        room = MAX_NAMED - len(self.named)
        for fault, _ in zip(found, range(room), strict=False):
            self.named.append(fault)

    def error(self) -> TraceRefusedError:
        """The refusal that names them."""
        listed = sorted(self.named, key=lambda fault: fault.line or 0)
        said = "; ".join(_sentence(fault) for fault in listed[:3])
        more = self.num_rows - len({fault.line for fault in listed[:3]})
        detail = f"{said}; and {more} more faulty rows" if more > 0 else said
        error = TraceRefusedError([_field_fault(fault) for fault in listed], detail)
        error.extensions = {"num_faulty_rows": self.num_rows, **self.about}
        return error


def _sentence(fault: RowFault) -> str:
    place = "the trace" if fault.line is None else f"line {fault.line}"
    return f"{place}: {fault.field} {fault.reason}" if fault.field else f"{place}: {fault.reason}"


def _field_fault(fault: RowFault) -> FieldFault:
    value = fault.value
    if isinstance(value, bytes):
        value = value[:_MAX_VALUE_CHARS].decode("utf-8", "replace")
    # A line that cannot be read has no field: then the whole row is at fault, or the whole trace.
    place = fault.field or ("trace" if fault.line is None else "row")
    about = {"line": fault.line, "field": place, "reason": fault.reason, **fault.about}
    return FieldFault(f"/{fault.field}" if fault.field else "", value, fault.reason, fault.remedy, about)
