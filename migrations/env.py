"""Alembic environment: online only, one transaction, short lock timeout; reads the metadata of app.db.tables.

The database is DATABASE_URL, or `Config.attributes["url"]` when called from Python.
"""

import os

from alembic import context
from sqlalchemy import create_engine, make_url, text

from app.db.tables import Base

_LOCK_TIMEOUT = "5s"
"""A migration that waits for a lock makes every later query wait behind it; better to fail and be run again."""


def _migrate() -> None:
    address = context.config.attributes.get("url") or os.environ["DATABASE_URL"]
    url = make_url(address).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"SET lock_timeout = '{_LOCK_TIMEOUT}'"))
        # Several processes may start at once: one migrates, the others wait and find nothing to do.
        connection.execute(text("SELECT pg_advisory_xact_lock(7310402)"))
        context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


_migrate()
