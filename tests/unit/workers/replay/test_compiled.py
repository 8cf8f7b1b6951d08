"""Where compiled code is kept."""

from pathlib import Path

import pytest

from workers.replay import event_loop
from workers.replay.compiled import VERSIONS_KEPT, KernelCacheLocator, cache_directory, entry, inner

_MARK = "from workers.replay.compiled import inner\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A compiled source file, the only one of its repository."""
    source = tmp_path / "a" / "workers" / "replay" / "loop.py"
    source.parent.mkdir(parents=True)
    source.write_text(_MARK + "one = 1\n")
    return source


def test_cache_of_changed_sources_is_another_folder(source: Path, tmp_path: Path) -> None:
    before = cache_directory(tmp_path / "a", tmp_path / "kernels")
    assert cache_directory(tmp_path / "a", tmp_path / "kernels") == before
    source.write_text(_MARK + "one = 2\n")
    assert cache_directory(tmp_path / "a", tmp_path / "kernels") != before


def test_cache_follows_what_compiled_code_imports(source: Path, tmp_path: Path) -> None:
    root, kernels = tmp_path / "a", tmp_path / "kernels"
    rates = root / "workers" / "timing" / "rates.py"
    rates.parent.mkdir()
    rates.write_text("per_token = 1\n")
    (root / "workers" / "timing" / "aside.py").write_text("unused = 1\n")
    source.write_text(_MARK + "from workers.timing.rates import per_token\n")
    before = cache_directory(root, kernels)
    (root / "workers" / "timing" / "aside.py").write_text("unused = 2\n")
    assert cache_directory(root, kernels) == before
    rates.write_text("per_token = 2\n")
    assert cache_directory(root, kernels) != before


def test_cache_of_equal_sources_elsewhere_is_the_same_folder(source: Path, tmp_path: Path) -> None:
    before = cache_directory(tmp_path / "a", tmp_path / "kernels")
    (tmp_path / "a").rename(tmp_path / "b")
    assert cache_directory(tmp_path / "b", tmp_path / "kernels") == before


def test_cache_keeps_only_the_last_versions(source: Path, tmp_path: Path) -> None:
    for content in range(VERSIONS_KEPT + 3):
        source.write_text(f"{_MARK}one = {content}\n")
        newest = cache_directory(tmp_path / "a", tmp_path / "kernels")
    kept = list(newest.parent.iterdir())
    assert len(kept) == VERSIONS_KEPT
    assert newest in kept


def test_cache_of_a_kernel_lies_in_the_folder_of_these_sources() -> None:
    locator = event_loop.run._cache._impl.locator
    assert isinstance(locator, KernelCacheLocator)
    assert Path(locator.get_cache_path()).name == "workers.replay"


@inner
def _sum(one, other):  # type: ignore[no-untyped-def]
    return one + other


@entry
def _doubled(one):  # type: ignore[no-untyped-def]
    return _sum(one, one)


def test_inner_function_is_taken_in_by_compiled_code_and_refused_to_python() -> None:
    assert _doubled(21) == 42
    with pytest.raises(TypeError):
        _sum(1, 2)
