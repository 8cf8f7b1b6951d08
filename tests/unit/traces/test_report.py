"""What a trace says about itself."""

from pathlib import Path

import numpy as np
import pytest

from app.traces import prefix_share as module
from app.traces.prefix_share import prefix_share
from tests.golden.files import trace
from tests.unit.traces.helpers import field_case, lines, row, take


def test_conversation_trace_reports_its_published_figures(tmp_path: Path) -> None:
    report = take(tmp_path, trace("mooncake_conversation.jsonl")).summary
    assert report["num_requests"] == 12031
    assert report["span_ms"] == pytest.approx(3_537_000, rel=1e-4)
    assert report["mean_rate_rps"] == pytest.approx(3.40, abs=0.005)
    assert report["isl"]["mean"] == pytest.approx(12_035.1, abs=0.05)
    assert [report["isl"][name] for name in ("p1", "p25", "p50", "p75", "p90", "p99", "max")] == [
        894, 2306, 6909, 15368, 27367, 85401, 126195,
    ]  # fmt: skip
    assert [report["osl"][name] for name in ("p1", "p25", "p50", "p75", "p90", "p99", "max")] == [
        3, 156, 350, 472, 597, 1120, 2000,
    ]  # fmt: skip
    assert report["ideal_prefix_share"] == pytest.approx(0.3664, abs=5e-5)
    assert (report["num_blocks"], report["num_distinct_blocks"]) == (288_500, 182_790)
    assert report["longest_request_tokens"] == 126_527


@pytest.mark.parametrize(("limit", "over"), [(32_768, 846), (40_960, 574)])
def test_requests_over_a_context_follow_from_the_length_counts(tmp_path: Path, limit: int, over: int) -> None:
    counts = take(tmp_path, trace("mooncake_conversation.jsonl")).summary["length_counts"]
    assert sum(count for tokens, count in counts if tokens > limit) == over
    assert counts[0][0] == 126_527
    assert sum(count for _, count in counts) == 12_031


def test_length_counts_of_few_lengths_are_exact(tmp_path: Path) -> None:
    assert take(tmp_path, field_case("F05")).summary["length_counts"][:2] == [[300_060, 1], [42_000, 1]]


@pytest.mark.parametrize("ids_per_pass", [1 << 20, 50])
def test_prefix_share_is_that_of_a_set_of_seen_ids(monkeypatch: pytest.MonkeyPatch, ids_per_pass: int) -> None:
    monkeypatch.setattr(module, "_IDS_PER_PASS", ids_per_pass)
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 9, 400)
    ids = rng.integers(0, 700, counts.sum()).astype(np.uint64)
    seen: set[int] = set()
    shared, at = 0, 0
    for count in counts.tolist():
        own = ids[at : at + count].tolist()
        shared += next((place for place, each in enumerate(own) if each not in seen), count)
        seen.update(own)
        at += count
    found = prefix_share(counts, lambda first, number: ids[first : first + number])
    assert found.ratio == pytest.approx(shared / ids.size, abs=1e-6)
    assert (found.num_distinct, found.num_requests) == (len(seen), 400)


def test_prefix_share_of_very_many_ids_is_that_of_the_first_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_IDS", 10)
    ids = np.tile(np.arange(4, dtype=np.uint64), 100)
    found = prefix_share(np.full(100, 4), lambda first, number: ids[first : first + number])
    assert (found.ratio, found.num_requests) == (0.5, 2)


def test_requests_at_one_instant_have_no_rate(tmp_path: Path) -> None:
    report = take(tmp_path, lines(row(), row())).summary
    assert (report["mean_rate_rps"], report["peak_rate_rps"], report["span_ms"]) == (None, None, 0.0)


def test_sessions_and_their_turns_are_counted(tmp_path: Path) -> None:
    report = take(tmp_path, trace("mooncake-sessions.jsonl")).summary
    assert (report["num_sessions"], report["num_turns_in_sessions"], report["max_turns"]) == (24, 75, 4)
