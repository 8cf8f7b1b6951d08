"""Aliases and suggestions of catalog names."""

import pytest

from app.catalog import snapshot
from app.catalog.suggest import canonical_hardware, canonical_model, nearest


@pytest.mark.parametrize(
    ("unknown", "first"),
    [
        ("Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("deepseek v3", "deepseek-ai/DeepSeek-V3"),
        ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
    ],
)
def test_unknown_model_gets_three_suggestions_with_the_meant_one_first(unknown: str, first: str) -> None:
    close = nearest(unknown, snapshot.MODELS)
    assert close[0] == first
    assert len(close) == 3


@pytest.mark.parametrize(
    ("unknown", "first"), [("h200", "h200_sxm"), ("b200", "b200_sxm"), ("A100-SXM", "a100_sxm"), ("gb20", "gb200")]
)
def test_unknown_hardware_gets_the_meant_one_first(unknown: str, first: str) -> None:
    assert nearest(unknown, snapshot.HARDWARE)[0] == first


def test_name_that_resembles_nothing_still_gets_three() -> None:
    assert len(nearest("zzzzzz", snapshot.HARDWARE)) == 3


def test_very_long_name_is_cut_before_it_is_compared() -> None:
    assert len(nearest("x" * 1_000_000, snapshot.MODELS)) == 3


def test_spelling_that_means_one_name_is_resolved() -> None:
    assert canonical_model("QWEN3-32b-fp8") == "Qwen/Qwen3-32B-FP8"
    assert canonical_hardware("H200") == "h200_sxm"
    assert canonical_hardware("h200_sxm") == "h200_sxm"


def test_spelling_that_means_none_or_several_is_not_resolved() -> None:
    assert canonical_model("qwen3") is None
    assert canonical_hardware("mi300x") is None
