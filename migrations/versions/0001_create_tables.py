"""Create every table: traces, studies, trials, candidates, reports, keys."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "traces",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("summary", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traces")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_traces_project_name")),
        sa.UniqueConstraint("project", "sha256", name=op.f("uq_traces_project_sha256")),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("config_sha256", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("trace_id", sa.Uuid(), nullable=True),
        sa.Column("warnings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("provenance", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("plan", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("coverage", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("problem", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("best", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("round", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_trials", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_feasible", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_infeasible", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_unsupported", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_timed_out", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_cancelled", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_cached", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_late", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("woken_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("ranked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'failed') = (problem IS NOT NULL)", name=op.f("ck_studies_problem_iff_failed")),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'failed', 'succeeded')) = (finished_at IS NOT NULL)",
            name=op.f("ck_studies_finished_iff_terminal"),
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'failed', 'planning', 'queued', 'running', 'succeeded')",
            name=op.f("ck_studies_status"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('running', 'succeeded') OR plan IS NOT NULL", name=op.f("ck_studies_plan_when_running")
        ),
        sa.CheckConstraint("version >= 1", name=op.f("ck_studies_version")),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_studies_trace_id_traces")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index(
        "ix_studies_open",
        "studies",
        ["updated_at"],
        unique=False,
        postgresql_where=sa.text("status NOT IN ('cancelled', 'failed', 'succeeded')"),
    )
    op.create_index("ix_studies_project_id", "studies", ["project", "id"], unique=False)
    op.create_index(op.f("ix_studies_trace_id"), "studies", ["trace_id"], unique=False)
    op.create_table(
        "candidates",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("study_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("deployment_sha256", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("on_front", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("used_gpus", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("objectives", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("sla_met", sa.Boolean(), nullable=True),
        sa.Column("load", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("deployment", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("place >= 1", name=op.f("ck_candidates_place")),
        sa.CheckConstraint("rank IS NULL OR place IS NOT NULL", name=op.f("ck_candidates_rank_needs_place")),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_candidates_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("study_id", "deployment_sha256", name=op.f("uq_candidates_study_id_deployment_sha256")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_candidates_study_id_number")),
    )
    op.create_index(
        "ix_candidates_front", "candidates", ["study_id", "place"], unique=False, postgresql_where=sa.text("on_front")
    )
    op.create_index("ix_candidates_study_id_place", "candidates", ["study_id", "place"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_sha256", sa.Text(), nullable=False),
        sa.Column("study_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_idempotency_keys_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_study_id"), "idempotency_keys", ["study_id"], unique=False)
    op.create_table(
        "trials",
        sa.Column("study_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("deployment", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("deployment_sha256", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("chunk", sa.Integer(), nullable=True),
        sa.Column("sent_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("reason_code", sa.Text(), nullable=True),
        sa.Column("reason_detail", sa.Text(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("objectives", sa.ARRAY(sa.Double()), nullable=True),
        sa.Column("rejected", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column("cache_hit", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("candidate_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (lease_expires_at IS NOT NULL)", name=op.f("ck_trials_lease_iff_running")
        ),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'failed', 'feasible', 'infeasible', 'timed_out', 'unsupported')) "
            "= (finished_at IS NOT NULL)",
            name=op.f("ck_trials_finished_iff_terminal"),
        ),
        sa.CheckConstraint(
            "(status IN ('queued', 'running', 'feasible')) = (reason_code IS NULL)",
            name=op.f("ck_trials_reason_iff_not_feasible"),
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'failed', 'feasible', 'infeasible', 'queued', 'running', "
            "'timed_out', 'unsupported')",
            name=op.f("ck_trials_status"),
        ),
        sa.CheckConstraint("(chunk IS NULL) = (sent_at IS NULL)", name=op.f("ck_trials_chunk_iff_sent")),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_trials_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_trials")),
    )
    op.create_index(
        "ix_trials_lease", "trials", ["lease_expires_at"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.create_index(
        "ix_trials_open",
        "trials",
        ["study_id", "number"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_index(
        "ix_trials_sent", "trials", ["sent_at"], unique=False, postgresql_where=sa.text("status = 'queued'")
    )
    op.create_table(
        "reports",
        sa.Column("candidate_id", sa.Uuid(), nullable=False),
        sa.Column("body_zstd", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_reports_candidate_id_candidates"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("candidate_id", name=op.f("pk_reports")),
    )


def downgrade() -> None:

    op.drop_table("reports")
    op.drop_index("ix_trials_sent", table_name="trials", postgresql_where=sa.text("status = 'queued'"))
    op.drop_index("ix_trials_open", table_name="trials", postgresql_where=sa.text("status IN ('queued', 'running')"))
    op.drop_index("ix_trials_lease", table_name="trials", postgresql_where=sa.text("status = 'running'"))
    op.drop_table("trials")
    op.drop_index(op.f("ix_idempotency_keys_study_id"), table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_candidates_study_id_place", table_name="candidates")
    op.drop_index("ix_candidates_front", table_name="candidates", postgresql_where=sa.text("on_front"))
    op.drop_table("candidates")
    op.drop_index(op.f("ix_studies_trace_id"), table_name="studies")
    op.drop_index("ix_studies_project_id", table_name="studies")
    op.drop_index(
        "ix_studies_open",
        table_name="studies",
        postgresql_where=sa.text("status NOT IN ('cancelled', 'failed', 'succeeded')"),
    )
    op.drop_table("studies")
    op.drop_table("traces")
    op.drop_table("api_keys")
