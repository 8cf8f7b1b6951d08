"""Settings: every knob an operator has, read once from the environment.

`DATABASE_URL` and `REDIS_URL` are read as they are; every other field is read from `SPICA_<FIELD>`.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SERVICE_VERSION = "0.1.0"
VERSIONS_CHANNEL = "spica.versions"
"""Redis channel on which new study versions are announced, as "<study id> <version>"."""

_PLAIN_NAMES = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}


class Settings(BaseModel):
    """Defaults are those of the service contract, section 5. Durations in seconds, sizes in bytes.

    trace_dir: folder of traces that clients may name by relative path. trace_store: where uploaded traces are kept: in
    `data_dir`, which all hosts then share, or in the database. max_trace_uploads: read at a time per process.
    worker_nice: how far replays stand back for whatever else the machine does, the API and the database above all.
    replay_threads: threads of one replay, for workers that have fewer processes than the machine has cores.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    database_url: str = "postgresql://app@127.0.0.1:5432/spica"
    redis_url: str = "redis://127.0.0.1:6379/0"
    database_pool: int = Field(10, ge=1)
    host: str = "127.0.0.1"
    allow_anonymous: bool = False
    data_dir: Path = Path("data")
    trace_dir: Path | None = None
    trace_store: Literal["directory", "postgres"] = "directory"

    max_trace_bytes: int = Field(1 << 30, ge=1)
    max_trace_rows: int = Field(5_000_000, ge=1)
    max_trace_decompressed_bytes: int = Field(8 << 30, ge=1)
    max_trace_uploads: int = Field(2, ge=1)
    trace_upload_timeout_s: float = Field(3600.0, gt=0)
    max_config_bytes: int = Field(1 << 20, ge=1)
    body_timeout_s: float = Field(30.0, gt=0)
    max_trials: int = Field(20_000, ge=1)
    max_replay_requests: int = Field(5_000_000, ge=1)
    max_gpus: int = Field(4096, ge=1)
    max_study_s: float = Field(86_400.0, gt=0)
    max_open_studies: int = Field(100, ge=1)
    max_wait_s: float = Field(60.0, ge=0)
    max_event_streams: int = Field(500, ge=1)
    page_cache_bytes: int = Field(64 << 20, ge=0)
    idempotency_hours: float = Field(24.0, gt=0)

    worker_nice: int = Field(5, ge=0, le=19)
    replay_threads: int = Field(1, ge=1, le=64)
    chunk_s: float = Field(1.0, gt=0)
    lease_s: float = Field(10.0, gt=0)
    heartbeat_s: float = Field(2.5, gt=0)
    max_attempts: int = Field(4, ge=1)
    rescue_every_s: float = Field(1.0, gt=0)
    lost_message_s: float = Field(2.0, gt=0)
    slow_message_s: float = Field(60.0, gt=0)
    cancel_grace_s: float = Field(2.5, gt=0)
    kill_grace_s: float = Field(1.0, gt=0)
    retention_days: float | None = Field(None, gt=0)
    database_patience_s: float = Field(120.0, gt=0)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables; unset and empty ones keep their default.

    Raises: pydantic.ValidationError for a value that does not fit its field.
    """
    names = {field: _PLAIN_NAMES.get(field, f"SPICA_{field.upper()}") for field in Settings.model_fields}
    return Settings.model_validate({field: environment[name] for field, name in names.items() if environment.get(name)})


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process."""
    return read_settings(os.environ)
