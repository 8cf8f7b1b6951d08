"""`sweep`: how long and in which manner a study searches.

Source: search.md, section 1.5.
"""

from typing import Annotated

from pydantic import Field

from app.schemas.block import Block, Document, OneOf, is_set, mapping_at

BUDGET_FIELDS = ("max_rounds", "candidates_per_round", "max_trials")
MAX_TRIALS = 20_000
"""Limit of the service: trials in one study (service.md, section 5)."""

_Count = Annotated[int, Field(gt=0, le=1_000_000)]


class Sweep(Block):
    """Rounds, their size, their time limit, and the algorithm.

    whole_space: the search ends by itself (space covered or bounded out) and the round budget does not apply. Unset, it
    becomes true for `auto` unless the client wrote a budget of its own.
    """

    max_rounds: _Count = 20
    parallel_evals: Annotated[int, Field(gt=0, le=10_000)] = 16
    candidates_per_round: _Count | None = None
    max_eval_seconds: Annotated[float, Field(gt=0, le=1e9)] | None = 600.0
    max_trials: _Count | None = None
    algorithm: Annotated[str, OneOf(("auto", "random", "vizier"), (("bayesian", "vizier"),))] = "auto"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 42
    whole_space: bool | None = None

    @property
    def round_size(self) -> int:
        """New unique feasible candidates that a round aims at."""
        return self.candidates_per_round or self.parallel_evals


def with_default_budget(document: Document) -> Document:
    """The document with `whole_space` settled: true for `auto` without a budget of the client."""
    sweep = document.get("sweep", {})
    if not isinstance(sweep, dict) or is_set(sweep, "whole_space"):
        return document
    automatic = sweep.get("algorithm", "auto") == "auto"
    whole = automatic and not any(is_set(mapping_at(document, "sweep"), field) for field in BUDGET_FIELDS)
    return {**document, "sweep": {**sweep, "whole_space": whole}}
