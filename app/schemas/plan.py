"""Plan: everything known about a study before the first replay."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.advice import Warned
from app.schemas.deployment import Backend, Mode, ParallelShape
from app.schemas.status import ReasonCode


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolPlan(_Part):
    """Parallel configurations of one branch on one backend: all, then what each filter leaves."""

    backend: Backend
    enumerated: int
    backend_rules: int = Field(description="Left by the backend's own rules.")
    kv_capacity: int = Field(description="Left by the KV filter: one rank must hold the longest sequence.")
    perf_data: int = Field(description="Left because their step times are known; these are searched.")


class KnobPlan(_Part):
    """A knob of the branch and its values; one value means pinned."""

    name: str
    values: list[Any]


class BranchPlan(_Part):
    """One deployment mode. `pool_size` counts configurations over all backends, `combinations` candidates."""

    mode: Mode
    pool_size: int
    pools: list[PoolPlan]
    knobs: list[KnobPlan]
    combinations: int


class ExcludedPlan(_Part):
    """A shape that is not searched on a backend (shape null: the whole backend), with the figures of its reason."""

    backend: Backend
    shape: ParallelShape | None
    gpus: int | None
    code: ReasonCode
    detail: str
    numbers: dict[str, float]


class KvCapacityPlan(_Part):
    """KV room of one role under one batching. `capacity_tokens` and `concurrency` are per replica, whole blocks only.

    concurrency: requests of the workload that fill it on average; null for a trace. reason: why there is no room.
    """

    role: str
    backend: Backend
    shape: ParallelShape
    max_num_batched_tokens: int
    tokens_per_rank: int | None
    blocks_per_rank: int | None
    capacity_tokens: int | None
    concurrency: int | None
    reason: str | None = None


class LoadPlan(_Part):
    """The load as resolved. For a KV load the concurrency differs by candidate: least and greatest over the pool."""

    shape: str
    in_flight_cap: int | None = None
    request_rate: float | None = None
    interval_ms: float | None = None
    num_requests: int | None = None
    kv_load_ratio: list[float] | None = None
    min_concurrency: int | None = None
    max_concurrency: int | None = None


class ContextPlan(_Part):
    """How the requests compare with the longest sequence an engine takes; null where the trace does not say."""

    limit_tokens: int
    longest_request_tokens: int | None
    num_requests_over: int | None


class TracePlan(_Part):
    """Sums and extremes of a trace, from which bounds on every candidate follow."""

    num_requests: int
    num_requests_over: int = Field(description="Requests longer than the longest sequence an engine takes.")
    num_requests_without_output: int
    input_tokens: int
    output_tokens: int
    shortest_prompt_tokens: int
    longest_request_tokens: int
    span_ms: float = Field(description="From the first arrival to the last, as recorded.")
    max_turns: int
    shares_tokens: bool = Field(description="Whether requests may have prompt blocks in common.")


class BudgetPlan(_Part):
    """What ends the study, and how many trials that can be at most."""

    whole_space: bool
    max_rounds: int | None
    round_size: int | None
    max_trials: int | None
    expected_trials: int


class PredictorLossPlan(_Part):
    """One load predictor candidate; a candidate without loss says why."""

    name: str
    loss: float | None
    reason: str | None = None


class LoadPredictorPlan(_Part):
    """The load predictor of one throughput interval. `winner` and `fields` are null until the trace has been read."""

    interval_s: int
    winner: str | None = Field(None, description="Preset, or place among the candidates (`custom_N`).")
    fields: dict[str, Any] | None = Field(None, description="Planner fields of the winner, as in every candidate.")
    reason: str
    num_windows: int = Field(0, description="Intervals of the trace that were forecast.")
    warm_up: int = Field(0, description="Of these, the first ones, which do not count.")
    candidates: list[PredictorLossPlan] = []


class NearestPlan(_Part):
    """The least change that would let something fit; null where there is none."""

    smallest_gpus: int | None = Field(description="Fewest GPUs of this hardware on which one engine fits.")
    shape: ParallelShape | None
    backend: Backend | None
    longest_context_tokens: int | None = Field(description="Longest sequence that fits in the budget as given.")
    other_hardware: list[str] = Field(description="Hardware on which the model fits in the budget as given.")


class Plan(_Part):
    """The plan of a study; `problem` is set when nothing can be searched."""

    branches: list[BranchPlan]
    excluded: list[ExcludedPlan]
    kv_capacity: list[KvCapacityPlan]
    load: LoadPlan
    context: ContextPlan
    trace: TracePlan | None = None
    combinations: int
    continuous: bool = Field(description="A range of KV loads is searched on top of the combinations.")
    algorithm: str
    budget: BudgetPlan
    estimated_seconds: float = Field(
        description="Seconds that the replays of all expected trials take on one core, roughly; a search whose bounds"
        " spare replays takes less."
    )
    warnings: list[Warned]
    perf_data: dict[str, Any]
    load_predictors: list[LoadPredictorPlan] = Field([], description="One per interval of throughput scaling.")
    nearest: NearestPlan | None = None
    problem: dict[str, Any] | None = None
