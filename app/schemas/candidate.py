"""A candidate as clients see it: one distinct evaluated configuration with its result."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field


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
    created_at: datetime


class CandidatePage(BaseModel):
    """A page of candidates."""

    study_id: UUID
    version: int = Field(description="The study's version that this page shows.")
    view: str
    items: list[CandidateView]
    next_cursor: str | None
