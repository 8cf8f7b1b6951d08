"""API keys of the service that `run.py serve` keeps up, or of the one that DATABASE_URL belongs to."""

import os
from collections.abc import Sequence
from pathlib import Path

from launch.folders import REPOSITORY
from launch.install import PYTHON
from launch.process import run_in_foreground
from launch.servers import external_env, running_postgres
from launch.stack import child_env


def manage_keys(folder: Path, arguments: Sequence[str]) -> int:
    """Run `python -m app.keys` on that database; its exit code. Raises: LaunchError when no service is up."""
    url = external_env(os.environ).get("DATABASE_URL") or running_postgres(folder)
    env = child_env(folder) | {"DATABASE_URL": url}
    return run_in_foreground([str(PYTHON), "-m", "app.keys", *arguments], env=env, cwd=REPOSITORY)
