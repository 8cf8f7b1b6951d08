"""The trace report of one candidate: every metric, percentiles and a timeline."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ScaleEvent(BaseModel):
    """A planner's decision: engines of one role before and after, starting ones included."""

    at_s: float
    component: str = Field(description="agg, prefill or decode.")
    from_count: int
    to_count: int
    reason: str = Field(description="scale_up or scale_down.")


class GpuLine(BaseModel):
    """GPUs of a role from each instant until the next: starting, active and draining engines."""

    instant_ms: list[float]
    gpus: list[int]


class Scaling(BaseModel):
    """What a planner did during the replay."""

    planner_total_ticks: int
    events: list[ScaleEvent]
    gpus: dict[str, GpuLine] = Field(description="By role.")


class Report(BaseModel):
    """What the replay of one candidate measured. Further members are as the simulator states them."""

    model_config = ConfigDict(extra="allow")

    metrics: dict[str, float | None] = Field(default={}, description="Flat metrics, units in the names.")
    timeline: dict[str, Any] | None = Field(
        None, description="At most 500 buckets: in flight, queued, KV use, tokens/s."
    )
    step_time_residual: float | None = Field(
        None,
        description="Largest relative error of interpolated decode times, of 20 that were asked directly; 0 where none was"
        " interpolated.",
    )
    scaling: Scaling | None = Field(None, description="Null where no planner scales.")
