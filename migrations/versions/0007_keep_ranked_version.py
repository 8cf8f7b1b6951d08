"""studies: the version that last changed a ranked candidate"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("ranked_version", sa.Integer(), server_default="1", nullable=False))
    op.execute("UPDATE studies SET ranked_version = version")


def downgrade() -> None:
    op.drop_column("studies", "ranked_version")
