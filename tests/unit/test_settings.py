"""Settings from the environment."""

import pytest
from pydantic import ValidationError

from app.config import read_settings


def test_defaults_are_those_of_the_contract() -> None:
    read = read_settings({})
    assert (read.max_config_bytes, read.max_trials, read.max_open_studies, read.max_wait_s) == (
        1 << 20,
        20_000,
        100,
        60,
    )


def test_variables_are_read_by_name_and_empty_ones_ignored() -> None:
    read = read_settings({"DATABASE_URL": "postgresql://x/y", "SPICA_MAX_TRIALS": "7", "SPICA_HOST": ""})
    assert (read.database_url, read.max_trials, read.host) == ("postgresql://x/y", 7, "127.0.0.1")


def test_value_out_of_range_is_refused() -> None:
    with pytest.raises(ValidationError):
        read_settings({"SPICA_MAX_TRIALS": "0"})
