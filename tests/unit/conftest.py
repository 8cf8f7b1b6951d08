"""Every test of this run shares one cache folder of its own, so that none reads what another run left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def private_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("spica-cache")
    before = os.environ.get("SPICA_CACHE_DIR")
    os.environ["SPICA_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["SPICA_CACHE_DIR"]
    else:
        os.environ["SPICA_CACHE_DIR"] = before
