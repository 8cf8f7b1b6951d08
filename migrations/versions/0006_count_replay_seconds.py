"""studies: seconds that evaluations of their trials took"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("replay_s", sa.Double(), server_default="0", nullable=False))
    op.execute("""
        UPDATE studies SET replay_s = sums.replay_s
        FROM (SELECT study_id, sum(wall_s) AS replay_s FROM trials WHERE wall_s > 0 GROUP BY study_id) AS sums
        WHERE studies.id = sums.study_id
    """)


def downgrade() -> None:
    op.drop_column("studies", "replay_s")
