"""The reckoning of a large site from measured figures, and the comparison with measured engines."""

from typing import Any

import pytest

from benchmarks import silicon, site
from benchmarks.scale import per_worker


def scale_rows() -> list[dict[str, Any]]:
    """Workers that each hold 3 connections and 16 clients, beside 5 and 4 of the API."""
    return [
        {
            "workers": n,
            "connections": 5.0 + 3.0 * n,
            "redis_clients": 4.0 + 16.0 * n,
            "idle_transactions_per_s": 1.0 + 2.0 * n,
            "idle_redis_commands_per_s": 5.0 * n,
            "redis_commands_per_study": 864.0,
            "database_bytes_per_study": 500_000.0,
        }
        for n in (1, 2, 4)
    ]


@pytest.fixture
def lines() -> dict[str, site.Line]:
    rows = scale_rows()
    parts = {
        "max_connections": 100.0,
        "statements_per_s": 10_000.0,
        "max_redis_clients": 10_000.0,
        "redis_commands_per_s": 9_000.0,
    }
    traces = {"rows_per_s": 50_000.0, "stored_bytes_of_a_recorded_row": 200.0}
    results = {
        "scale": {"rows": rows, "per_worker": per_worker(rows), "parts": parts, "traces": traces},
        "persist": {"trials_per_s": 1_000.0},
        "replay": {"rows": [{"load": "conversation trace", "ours_ms": 43.2, "requests": 10_000}]},
    }
    return {line.what: line for line in site.lines(results)}


def test_connections_of_a_hundred_workers_exceed_what_the_database_allows(lines: dict[str, site.Line]) -> None:
    line = lines["Postgres: connections"]
    assert (line.asked, line.can, line.share) == ("305", "100", pytest.approx(3.05))


def test_replays_are_priced_per_request_of_every_trial(lines: dict[str, site.Line]) -> None:
    assert lines["replays"].share == pytest.approx(100 * 1e9 * 4.32e-6 / 86_400 / 100)


def test_redis_carries_idle_workers_and_studies(lines: dict[str, site.Line]) -> None:
    assert lines["Redis: commands"].share == pytest.approx((5.0 * 100 + 864.0 * 1_000 / 86_400) / 9_000)


def test_stores_are_sized_by_their_rows(lines: dict[str, site.Line]) -> None:
    assert lines["trace store: disk"].asked == "200 GB"
    assert lines["Postgres: disk"].asked == "0.50 GB a day"


ROW = {
    "silicon_data_source": "x; silicon_concurrency=32; y",
    "tp_size": "4",
    "pp_size": "1",
    "moe_tp_size": "1",
    "moe_ep_size": "4",
    "isl": "1024",
    "osl": "512",
    "silicon_ttft_ms": "200.0",
    "silicon_tpot_ms": "10.0",
}


def test_measured_run_becomes_a_closed_loop_of_its_concurrency() -> None:
    asked = silicon.config(("openai/gpt-oss-120b", "h200_sxm", "vllm"), ROW)
    assert asked["traffic"]["load"] == {"type": "concurrency", "concurrency": 32}
    assert asked["traffic"]["stop"] == {"requests": 256}
    worker = asked["engine"]["workers"]["aggregated"]
    assert worker["parallelism"] == {"tensor": 4, "pipeline": 1, "replicas": 1, "moe_tensor": 1, "moe_expert": 4}


def test_dense_checkpoint_asks_for_no_experts() -> None:
    asked = silicon.config(("nvidia/Llama-3.1-70B-Instruct-FP8", "h200_sxm", "vllm"), ROW)
    assert asked["engine"]["workers"]["aggregated"]["parallelism"] == {"tensor": 4, "pipeline": 1, "replicas": 1}


def test_ratio_above_one_means_slower_than_measured() -> None:
    assert silicon.ratios({"mean_ttft_ms": 300.0, "mean_tpot_ms": 9.0}, ROW) == {"ttft": 1.5, "tpot": 0.9}


def test_sample_that_ships_has_runs_to_compare() -> None:
    assert sum(map(len, silicon.sample().values())) > 100
