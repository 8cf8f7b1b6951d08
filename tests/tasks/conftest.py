"""A desk and empty tables for every test of this folder."""

import pytest

from tests.thin import Desk


@pytest.fixture
def desk(empty_tables: None, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Broker and worker in this process."""
    return Desk(monkeypatch)
