"""Life of a study and of a trial, as data: statuses, allowed moves and reason codes."""

from enum import StrEnum


class StudyStatus(StrEnum):
    QUEUED = "queued"
    PLANNING = "planning"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


STUDY_TERMINAL = frozenset({StudyStatus.SUCCEEDED, StudyStatus.FAILED, StudyStatus.CANCELLED})
TRIAL_TERMINAL = frozenset(TrialStatus) - {TrialStatus.QUEUED, TrialStatus.RUNNING}

STUDY_MOVES: dict[StudyStatus, frozenset[StudyStatus]] = {
    StudyStatus.QUEUED: frozenset({StudyStatus.PLANNING, StudyStatus.CANCELLED}),
    StudyStatus.PLANNING: frozenset({StudyStatus.RUNNING, StudyStatus.FAILED, StudyStatus.CANCELLED}),
    StudyStatus.RUNNING: frozenset({StudyStatus.SUCCEEDED, StudyStatus.FAILED, StudyStatus.CANCELLED}),
}

TRIAL_MOVES: dict[TrialStatus, frozenset[TrialStatus]] = {
    TrialStatus.QUEUED: frozenset({TrialStatus.RUNNING, TrialStatus.CANCELLED}),
    TrialStatus.RUNNING: frozenset({TrialStatus.QUEUED}) | (TRIAL_TERMINAL - {TrialStatus.UNSUPPORTED}),
}


class ReasonCode(StrEnum):
    """Why a trial is anything but feasible. Closed set; each member is documented in docs/states.md."""

    NO_KV_BUDGET = "no_kv_budget"
    KV_CAPACITY_BELOW_ONE_REQUEST = "kv_capacity_below_one_request"
    OVER_GPU_BUDGET = "over_gpu_budget"
    BACKEND_CANNOT_RUN_SHAPE = "backend_cannot_run_shape"
    NO_PERF_DATA = "no_perf_data"
    CONTEXT_TOO_LONG = "context_too_long"
    EXCEEDED_RUNTIME = "exceeded_runtime"
    OBJECTIVE_UNDEFINED = "objective_undefined"
    SLA_NOT_MET = "sla_not_met"
    REPLAY_ERROR = "replay_error"
    REPLAY_STUCK = "replay_stuck"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"
