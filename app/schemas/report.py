"""The trace report of one candidate: every metric, percentiles and a timeline."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Report(BaseModel):
    """What the replay of one candidate measured. Further members are as the simulator states them."""

    model_config = ConfigDict(extra="allow")

    metrics: dict[str, float | None] = Field(default={}, description="Flat metrics, units in the names.")
    timeline: dict[str, Any] | None = Field(
        None, description="At most 500 buckets: in flight, queued, KV use, tokens/s."
    )
