"""The locks hold what pyproject.toml pins, with hashes, for any machine."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = sorted(REPOSITORY.glob("requirements*.lock"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUNTIME = [*PROJECT["dependencies"], *EXTRAS["perf-data"], *EXTRAS["embedded"]]


def pins(lock: str) -> dict[str, str]:
    """Package name -> version of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (REPOSITORY / lock).read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", RUNTIME),
        ("requirements-dev.lock", [*RUNTIME, *EXTRAS["predictors"], *EXTRAS["otel"], *EXTRAS["dev"]]),
        ("requirements-predictors.lock", EXTRAS["predictors"]),
        ("requirements-otel.lock", EXTRAS["otel"]),
        ("requirements-browser.lock", EXTRAS["browser"]),
        ("requirements-aiconfigurator.lock", EXTRAS["perf-data-alternative"]),
        ("requirements-vizier.lock", EXTRAS["vizier"]),
    ],
)
def test_lock_holds_every_direct_dependency_at_its_pin(lock: str, wanted: list[str]) -> None:
    direct = dict(re.sub(r"\[.*?\]", "", requirement).split("==") for requirement in wanted)
    assert direct.items() <= pins(lock).items()


def test_dev_lock_contains_the_runtime_lock() -> None:
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_has_a_hash_for_every_package(lock: Path) -> None:
    entries = re.split(r"^(?=[a-z0-9-]+==)", lock.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_names_no_index_and_no_file(lock: Path) -> None:
    assert not re.search(r"--(extra-)?index-url|--find-links|://| @ ", lock.read_text())


def test_runtime_lock_leaves_the_predictors_extra_out() -> None:
    assert {"pmdarima", "prophet", "scikit-learn", "statsmodels"}.isdisjoint(pins("requirements.lock"))


def test_lock_leaves_the_heavy_samplers_out() -> None:
    heavy = {"optuna", "google-vizier", "jax", "jaxlib", "torch"}
    assert heavy.isdisjoint(pins("requirements-dev.lock"))
