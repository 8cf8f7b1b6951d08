"""The tables. Constraints carry the rules that must hold whoever writes; each has a name that migrations can use.

`status` columns are written by `app.db.lifecycle` only.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.schemas.status import STUDY_TERMINAL, TRIAL_TERMINAL, StudyStatus, TrialStatus

SCHEMA_REVISION = "0007"
"""The newest migration; /readyz compares it with the database's."""

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def _one_of(statuses: Any) -> str:
    return "(" + ", ".join(f"'{status}'" for status in sorted(statuses)) + ")"


class Base(DeclarativeBase):
    """Column types by annotation: text, big integers, UTC times, JSONB documents."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads this class attribute)
        str: Text,
        datetime: TIMESTAMP(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
        list[str]: ARRAY(Text),
        list[float]: ARRAY(Double),
        float: Double,
        bytes: LargeBinary,
    }


_NOW = text("now()")


class TraceRow(Base):
    """Recorded arrivals: one row per content and project; the rows of the trace themselves lie in a file.

    summary: what the content says about itself. upload: what its first upload was like.
    """

    __tablename__ = "traces"
    __table_args__ = (UniqueConstraint("project", "sha256"), Index("ix_traces_sha256", "sha256"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    project: Mapped[str]
    sha256: Mapped[str]
    num_requests: Mapped[int] = mapped_column(BigInteger)
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    block_size: Mapped[int]
    summary: Mapped[dict[str, Any]]
    upload: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class TraceNameRow(Base):
    """An alias of a trace; a trace may have several, an alias of a project names one trace."""

    __tablename__ = "trace_names"
    __table_args__ = (PrimaryKeyConstraint("project", "name"),)

    project: Mapped[str]
    name: Mapped[str]
    trace_id: Mapped[UUID] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class TraceChunkRow(Base):
    """A piece of a trace's content, in order; only where contents are kept in the database, for several hosts."""

    __tablename__ = "trace_chunks"
    __table_args__ = (PrimaryKeyConstraint("sha256", "number"),)

    sha256: Mapped[str]
    number: Mapped[int]
    body: Mapped[bytes]


class StudyRow(Base):
    """One search. `version` rises with every visible change; the counters equal the trial rows at every commit.

    ranked_version: the version that last changed a ranked candidate. round: rounds asked for so far. woken_at: when a
    message was last sent for it. ranked_at: when places were last written. num_late: verdicts that came after their
    lease was lost, and were dropped. replay_s: sum of the trials' `wall_s`. key_id: the API key that submitted it, NULL
    for an anonymous caller. expected_trials: in all, about, by
    what the search knows so far; NULL while nothing tells. sla: who met
    the bounds of the goal, NULL without bounds.
    """

    __tablename__ = "studies"
    __table_args__ = (
        CheckConstraint(f"status IN {_one_of(StudyStatus)}", name="status"),
        CheckConstraint(
            f"(status IN {_one_of(STUDY_TERMINAL)}) = (finished_at IS NOT NULL)", name="finished_iff_terminal"
        ),
        CheckConstraint("(status = 'failed') = (problem IS NOT NULL)", name="problem_iff_failed"),
        CheckConstraint("status NOT IN ('running', 'succeeded') OR plan IS NOT NULL", name="plan_when_running"),
        CheckConstraint("version >= 1", name="version"),
        Index("ix_studies_project_id", "project", "id"),
        Index("ix_studies_finished_at", "finished_at"),
        Index("ix_studies_open", "updated_at", postgresql_where=text(f"status NOT IN {_one_of(STUDY_TERMINAL)}")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    project: Mapped[str]
    key_id: Mapped[str | None]
    version: Mapped[int] = mapped_column(server_default="1")
    ranked_version: Mapped[int] = mapped_column(server_default="1")
    status: Mapped[str]
    name: Mapped[str | None]
    labels: Mapped[dict[str, Any]]
    model_name: Mapped[str]
    config: Mapped[dict[str, Any]]
    config_sha256: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    trace_id: Mapped[UUID | None] = mapped_column(ForeignKey("traces.id"), index=True)
    warnings: Mapped[list[Any]]
    provenance: Mapped[dict[str, Any]]
    plan: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    coverage: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    best: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    sla: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    expected_trials: Mapped[int | None]
    round: Mapped[int] = mapped_column(server_default="0")
    num_trials: Mapped[int] = mapped_column(server_default="0")
    num_feasible: Mapped[int] = mapped_column(server_default="0")
    num_infeasible: Mapped[int] = mapped_column(server_default="0")
    num_unsupported: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    num_timed_out: Mapped[int] = mapped_column(server_default="0")
    num_cancelled: Mapped[int] = mapped_column(server_default="0")
    num_cached: Mapped[int] = mapped_column(server_default="0")
    num_late: Mapped[int] = mapped_column(server_default="0")
    replay_s: Mapped[float] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    woken_at: Mapped[datetime | None]
    ranked_at: Mapped[datetime | None]


_OPEN_TRIAL = text("status IN ('queued', 'running')")


class TrialRow(Base):
    """One ask of the sampler, with a life cycle.

    attempt: times it was claimed; the fence of its verdict. chunk: number of the first trial of the message that
    carries it, NULL until sent. sent_at: when that message was last sent. sla: how far a replay is from the goal's
    bounds, NULL without bounds or replay. suggestion: the values that an optimizer asked for, NULL without one.
    """

    __tablename__ = "trials"
    __table_args__ = (
        PrimaryKeyConstraint("study_id", "number"),
        CheckConstraint(f"status IN {_one_of(TrialStatus)}", name="status"),
        CheckConstraint(
            f"(status IN {_one_of(TRIAL_TERMINAL)}) = (finished_at IS NOT NULL)", name="finished_iff_terminal"
        ),
        CheckConstraint("(status = 'running') = (lease_expires_at IS NOT NULL)", name="lease_iff_running"),
        CheckConstraint(
            "(status IN ('queued', 'running', 'feasible')) = (reason_code IS NULL)", name="reason_iff_not_feasible"
        ),
        CheckConstraint("(chunk IS NULL) = (sent_at IS NULL)", name="chunk_iff_sent"),
        Index("ix_trials_open", "study_id", "number", postgresql_where=_OPEN_TRIAL),
        Index("ix_trials_lease", "lease_expires_at", postgresql_where=text("status = 'running'")),
        Index("ix_trials_sent", "sent_at", postgresql_where=text("status = 'queued'")),
    )

    study_id: Mapped[UUID] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    round: Mapped[int]
    status: Mapped[str]
    deployment: Mapped[dict[str, Any]]
    deployment_sha256: Mapped[str]
    attempt: Mapped[int] = mapped_column(server_default="0")
    lease_expires_at: Mapped[datetime | None]
    chunk: Mapped[int | None]
    sent_at: Mapped[datetime | None]
    reason_code: Mapped[str | None]
    reason_detail: Mapped[str | None]
    score: Mapped[float | None]
    objectives: Mapped[list[float] | None]
    rejected: Mapped[int] = mapped_column(BigInteger, server_default="0")
    wall_s: Mapped[float | None]
    sla: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    cache_hit: Mapped[bool] = mapped_column(server_default="false")
    suggestion: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    candidate_id: Mapped[UUID | None]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class CandidateRow(Base):
    """The result of one distinct evaluated configuration; immutable but for `place`, `rank`, `on_front`, `stability`.

    place: position in the goal's total order, from 1; two candidates never swap, so a page cursor can rely on it.
    rank: what clients see: the place under a scalar goal, the position along the front under a Pareto goal, else NULL.
    stability: of the leaders of a study that has ended; see workers.stability.
    """

    __tablename__ = "candidates"
    __table_args__ = (
        UniqueConstraint("study_id", "deployment_sha256"),
        UniqueConstraint("study_id", "number"),
        CheckConstraint("place >= 1", name="place"),
        CheckConstraint("rank IS NULL OR place IS NOT NULL", name="rank_needs_place"),
        Index("ix_candidates_study_id_place", "study_id", "place"),
        Index("ix_candidates_front", "study_id", "place", postgresql_where=text("on_front")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    study_id: Mapped[UUID] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    deployment_sha256: Mapped[str]
    place: Mapped[int | None]
    rank: Mapped[int | None]
    on_front: Mapped[bool] = mapped_column(server_default="false")
    used_gpus: Mapped[int]
    score: Mapped[float]
    objectives: Mapped[list[float]]
    rejected: Mapped[int] = mapped_column(BigInteger)
    sla_met: Mapped[bool | None]
    load: Mapped[dict[str, Any]]
    metrics: Mapped[dict[str, Any]]
    deployment: Mapped[dict[str, Any]]
    stability: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)


class ReportRow(Base):
    """The trace report of one candidate, as zstd-compressed JSON: written in bulk, read singly, never searched."""

    __tablename__ = "reports"

    candidate_id: Mapped[UUID] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"), primary_key=True)
    body_zstd: Mapped[bytes]


class KeyRow(Base):
    """An API key. Only the SHA-256 of its secret is kept: the secret has 256 random bits, so no slow hash is needed."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    scopes: Mapped[list[str]]
    secret_sha256: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
    revoked_at: Mapped[datetime | None]


class IdempotencyRow(Base):
    """Which study an Idempotency-Key of a project stands for, and for which body."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (PrimaryKeyConstraint("project", "key"),)

    project: Mapped[str]
    key: Mapped[str]
    body_sha256: Mapped[str]
    study_id: Mapped[UUID] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=_NOW)
