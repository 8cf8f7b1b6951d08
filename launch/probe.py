"""Runs inside .venv: connects to Postgres and Redis as a client would and prints their versions, and the schema's, as JSON.

Usage: python -m launch.probe, with DATABASE_URL and REDIS_URL in the environment. Exit code 1 and one line per
server that does not answer.
"""

import json
import os
import sys

import psycopg
import redis

TIMEOUT_S = 5


def postgres_versions(url: str) -> tuple[str, str]:
    """Of the server, and of the schema, empty without one. Raises: psycopg.Error when it cannot be reached."""
    address = url.replace("+psycopg", "", 1)  # SQLAlchemy's way to name the driver, unknown to libpq
    with psycopg.connect(address, connect_timeout=TIMEOUT_S) as connection:
        version = connection.info.parameter_status("server_version") or "unknown"
        has_schema = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone() == (True,)
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if has_schema else None
        return version, "" if row is None else str(row[0])


def redis_version(url: str) -> str:
    """Raises: redis.RedisError when it cannot be reached."""
    with redis.Redis.from_url(url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S) as client:
        return str(client.info("server")["redis_version"])


def main() -> int:
    """Print {"Postgres": version, "schema": version, "Redis": version}; the exit code."""
    versions, faults = {}, []
    try:
        versions["Postgres"], versions["schema"] = postgres_versions(os.environ["DATABASE_URL"])
    except (psycopg.Error, ValueError) as fault:
        faults.append(f"DATABASE_URL: {fault}")
    try:
        versions["Redis"] = redis_version(os.environ["REDIS_URL"])
    except (redis.RedisError, ValueError) as fault:
        faults.append(f"REDIS_URL: {fault}")
    print("\n".join(faults) if faults else json.dumps(versions))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
