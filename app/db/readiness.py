"""Whether the database can be used: reachable, and of the schema version that this code was written for."""

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db.engine import transaction
from app.db.tables import SCHEMA_REVISION


def database() -> str:
    """`ok`, or what is wrong, without addresses."""
    try:
        with transaction() as db:
            if not db.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL")):
                return "has no schema; run the migrations"
            revision = db.scalar(text("SELECT version_num FROM alembic_version"))
    except SQLAlchemyError:
        return "not reachable"
    return "ok" if revision == SCHEMA_REVISION else f"schema version {revision}, expected {SCHEMA_REVISION}"
