"""traces: several names, the upload's report, contents in the database"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trace_names",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["trace_id"], ["traces.id"], name=op.f("fk_trace_names_trace_id_traces"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_trace_names")),
    )
    op.create_index(op.f("ix_trace_names_trace_id"), "trace_names", ["trace_id"], unique=False)
    op.create_table(
        "trace_chunks",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "number", name=op.f("pk_trace_chunks")),
    )
    op.execute("""
        INSERT INTO trace_names (project, name, trace_id)
        SELECT project, name, id FROM traces WHERE name IS NOT NULL
    """)
    op.drop_constraint(op.f("uq_traces_project_name"), "traces", type_="unique")
    op.drop_column("traces", "name")
    op.add_column("traces", sa.Column("upload", postgresql.JSONB(), server_default="{}", nullable=False))
    op.alter_column("traces", "upload", server_default=None)
    op.create_index("ix_traces_sha256", "traces", ["sha256"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_traces_sha256", table_name="traces")
    op.drop_column("traces", "upload")
    op.add_column("traces", sa.Column("name", sa.Text(), nullable=True))
    op.execute("UPDATE traces SET name = (SELECT min(name) FROM trace_names WHERE trace_id = traces.id)")
    op.create_unique_constraint(op.f("uq_traces_project_name"), "traces", ["project", "name"])
    op.drop_table("trace_chunks")
    op.drop_index(op.f("ix_trace_names_trace_id"), table_name="trace_names")
    op.drop_table("trace_names")
