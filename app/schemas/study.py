"""SmartSearchConfig: what a client submits, checked as a whole.

Every fault of a document is found in one pass: the fields by their types, and the rules between fields on the document
as it came, so that a fault in one place hides none in another.
"""

import hashlib
import json
from typing import Annotated, Any

from pydantic import Field, ModelWrapValidatorHandler, StringConstraints, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from app.schemas.adapters import flatten
from app.schemas.baseline import Baseline, baseline_flaws
from app.schemas.block import Block, Document, Loc, Rule, flaw_error
from app.schemas.goal import Goal, goal_flaws
from app.schemas.pins import pin_flaws
from app.schemas.search_space import SearchSpace, budget_flaws, offload_flaws, router_flaws
from app.schemas.sweep import Sweep, with_default_budget
from app.schemas.workload import Workload, load_flaws, range_flaws, with_default_load

RULES: tuple[Rule, ...] = (
    load_flaws,
    range_flaws,
    goal_flaws,
    budget_flaws,
    pin_flaws,
    router_flaws,
    offload_flaws,
    baseline_flaws,
)

_Label = Annotated[str, StringConstraints(max_length=256)]
_LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class SmartSearchConfig(Block):
    """A study: the space to search, the traffic, the goal, and how to search.

    The adapter form (`adapters`) is accepted and stored in the flat form.
    """

    search_space: SearchSpace
    workload: Workload
    goal: Goal = Goal()
    sweep: Sweep = Sweep(whole_space=True)
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    labels: Annotated[dict[_LabelKey, _Label], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    baseline: Baseline | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _check_whole(cls, raw: Any, handler: ModelWrapValidatorHandler["SmartSearchConfig"]) -> "SmartSearchConfig":
        if not isinstance(raw, dict):
            return handler(raw)
        flat = flatten(raw)
        document = with_default_budget(with_default_load(flat.document))
        flaws = [*flat.flaws, *(flaw for rule in RULES for flaw in rule(document))]
        lines = [flaw.line() for flaw in flaws]
        try:
            config = handler(document)
        except ValidationError as error:
            lines = [*_lines(error, flat.home), *lines]
        if lines:
            raise ValidationError.from_exception_data(cls.__name__, lines)
        return config


def _lines(error: ValidationError, home: Any) -> list[InitErrorDetails]:
    """The faults of an error, each at the client's own place."""
    return [
        InitErrorDetails(type=_kind(line), loc=home(line["loc"]), input=line["input"])
        for line in error.errors(include_url=False)
    ]


def _kind(line: Any) -> Any:
    context = {key: value for key, value in line.get("ctx", {}).items() if key != "error"}
    return flaw_error(line["type"], {"fault": line["msg"], **context})


def canonical_json(config: SmartSearchConfig) -> str:
    """The resolved configuration as one line: keys sorted, no blanks, every number in its field's type.

    JSON and YAML of one study, 1 and 1.0, the flat and the adapter form all give the same text.
    """
    return json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def config_sha256(config: SmartSearchConfig) -> str:
    """Hash of the canonical form, hexadecimal."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def client_set(document: Document) -> list[str]:
    """JSON pointers, in the flat form, of the fields that the client wrote itself; the rest are defaults."""
    return sorted(_leaves((), flatten(document).document))


def _leaves(at: Loc, value: Any) -> list[str]:
    if isinstance(value, dict) and value and len(at) < 3:
        return [pointer for key, each in value.items() for pointer in _leaves((*at, str(key)), each)]
    return [pointer_of(at)]


def pointer_of(loc: Loc) -> str:
    """RFC 6901 pointer of a location."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in loc)
