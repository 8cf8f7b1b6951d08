"""studies: the key that submitted; studies and trials: how far replays are from the SLA; expected trials apart from the plan"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("key_id", sa.Text(), nullable=True))
    op.add_column("studies", sa.Column("sla", postgresql.JSONB(none_as_null=True), nullable=True))
    op.add_column("studies", sa.Column("expected_trials", sa.Integer(), nullable=True))
    op.execute("UPDATE studies SET expected_trials = (plan -> 'budget' ->> 'expected_trials')::integer")
    op.add_column("trials", sa.Column("sla", postgresql.JSONB(none_as_null=True), nullable=True))
    op.create_index("ix_studies_finished_at", "studies", ["finished_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_studies_finished_at", table_name="studies")
    op.drop_column("trials", "sla")
    op.drop_column("studies", "expected_trials")
    op.drop_column("studies", "sla")
    op.drop_column("studies", "key_id")
