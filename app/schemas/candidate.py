"""A candidate as clients see it: one distinct evaluated configuration with its result."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field


class Variation(BaseModel):
    """A leader replayed under a changed load."""

    variation: str = Field(description="What was changed, in words.")
    load_ratio: float = Field(description="The load as a share of the study's own.")
    arrival_seed: int | None = Field(description="Seed of other random arrivals; null: the study's own.")
    objectives: dict[str, float] | None = Field(description="Null when it is no candidate under this load.")
    rank: int | None = Field(None, description="Among the leaders, under a scalar goal.")
    on_front: bool | None = Field(None, description="Among the leaders, under a Pareto goal.")


class StabilityView(BaseModel):
    """How a leader fares under a little less and more load, and under other random arrivals."""

    variations: list[Variation]


class CandidateView(BaseModel):
    """One candidate."""

    id: UUID
    study_id: UUID
    trial: int = Field(description="Number of the trial that evaluated it.")
    rank: int | None = Field(
        description="1 is best; position along the front under a Pareto goal; null when not ranked."
    )
    on_front: bool = Field(description="Whether no candidate is better in every objective.")
    used_gpus: int
    score: float = Field(description="Larger is better; minimized targets are negated.")
    objectives: dict[str, float] = Field(description="Raw value of each objective of the goal.")
    rejected: int = Field(description="Requests that this deployment can never hold.")
    sla_met: bool | None
    deployment: dict[str, Any]
    load: dict[str, float | None]
    metrics: dict[str, float | None]
    stability: StabilityView | None = Field(
        None, description="Of the five best, or the first ten of the front, once the study has ended."
    )
    created_at: datetime


class CandidatePage(BaseModel):
    """A page of candidates."""

    study_id: UUID
    version: int = Field(description="The study's version that last changed this list.")
    view: str
    items: list[CandidateView]
    next_cursor: str | None
