"""The compiled SGLang replay against the peer's observed rows and against the plain replay on random tight pools."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.reference.plain_replay import replay as plain_replay
from tests.reference.random_cases import assert_agree, random_case, seeds
from workers.errors import StuckError
from workers.replay.arrays import build, radix_overflow
from workers.replay.fleet import Fleet, Pool
from workers.replay.loop import advance, replay
from workers.replay.outcomes import Outcomes
from workers.replay.step_table import step_table
from workers.timing.fixed import FixedTimes
from workers.traffic.requests import RequestBatch

X8, X16, Y16 = ("x", 8), ("x", 16), ("y", 16)


@dataclass(frozen=True)
class Probe:
    """Requests (arrival ms, prompt spans, output tokens) on one engine, prefill 10 ms, decode 1 ms; and what the peer did.

    expected: (first admission, first token, last token, largest reuse, admissions) per request, times in ms.
    """

    page: int
    blocks: int
    requests: list[tuple[float, list[tuple[str, int]], int]]
    expected: list[tuple[float, float | None, float | None, int, int]]
    attention_dp: int = 1
    interval: int = 0


PROBES = {
    "blocked_head_does_not_refresh_its_prefix": Probe(
        1,
        90,
        [(0, [("x", 10)], 1), (20, [("y", 10)], 1), (40, [("c", 20)], 60), (60, [("x", 10), ("d", 1)], 50)],
        [(0, 10, 10, 0, 1), (20, 30, 30, 0, 1), (40, 50, 109, 0, 1), (109, 119, 168, 0, 1)],
    ),
    "edge_matched_in_part_is_refreshed_as_a_whole": Probe(
        4,
        12,
        [(0, [X16], 1), (20, [Y16], 1), (40, [X8, ("c", 3)], 1), (60, [("d", 24)], 1), (80, [X16, ("e", 3)], 1)],
        [(0, 10, 10, 0, 1), (20, 30, 30, 0, 1), (40, 50, 50, 8, 1), (60, 70, 70, 0, 1), (80, 90, 90, 16, 1)],
    ),
    "finish_refreshes_the_path_even_without_new_pages": Probe(
        4,
        12,
        [(0, [X16], 1), (40, [X16, ("c", 1)], 2), (45, [Y16], 1), (100, [("d", 20)], 1), (150, [X16, ("e", 3)], 1)],
        [(0, 10, 10, 0, 1), (40, 50, 61, 16, 1), (50, 60, 60, 0, 1), (100, 110, 110, 0, 1), (150, 160, 160, 16, 1)],
    ),
    "output_grows_the_edge_of_its_only_holder": Probe(
        4,
        14,
        [(0, [X16], 9), (30, [Y16], 1), (50, [X8, ("c", 3)], 1), (70, [("d", 24)], 1), (90, [Y16, ("e", 3)], 1)],
        [(0, 10, 18, 0, 1), (30, 40, 40, 0, 1), (50, 60, 60, 8, 1), (70, 80, 80, 0, 1), (90, 100, 100, 8, 1)],
    ),
    "outputs_of_two_holders_get_edges_of_their_own": Probe(
        4,
        16,
        [
            (0, [X16], 9),
            (0, [X16], 9),
            (30, [Y16], 1),
            (50, [X8, ("c", 3)], 1),
            (70, [("d", 24)], 1),
            (90, [Y16, ("e", 3)], 1),
        ],
        [
            (0, 10, 18, 0, 1),
            (0, 10, 18, 0, 1),
            (30, 40, 40, 0, 1),
            (50, 60, 60, 8, 1),
            (70, 80, 80, 0, 1),
            (90, 100, 100, 16, 1),
        ],
    ),
    "prompt_without_output_may_be_cached_entirely": Probe(
        1,
        90,
        [(0, [X8], 1), (20, [X8], 0), (40, [X8, ("q", 1)], 0), (60, [("z", 5)], 0)],
        [(0, 10, 10, 0, 1), (20, None, None, 8, 1), (40, None, None, 8, 1), (60, None, None, 0, 1)],
    ),
    "first_tokens_wait_when_their_slots_do_not_all_fit": Probe(
        16,
        5,
        [(0, [(f"p{k}", 16)], 2) for k in range(4)],
        [(0, 11, 12, 0, 1), (0, 11, 12, 0, 1), (0, 22, 23, 0, 2), (0, 22, 23, 0, 2)],
    ),
    "last_token_of_a_readmitted_request_has_no_slot": Probe(
        1,
        59,
        [(0, [("a", 10)], 20), (5, [("b", 10)], 20), (200, [("d", 25)], 1), (300, [("a", 10), ("e", 1)], 1)],
        [(0, 10, 39, 0, 1), (10, 20, 49, 10, 2), (200, 210, 210, 0, 1), (300, 310, 310, 5, 1)],
    ),
    "interval_holds_back_idle_ranks_while_another_decodes": Probe(
        1,
        5000,
        [(0, [("a", 100)], 100), (20, [("b", 100)], 1), (20.5, [("a2", 50)], 200), (21, [("c", 100)], 1)],
        [(0, 10, 128, 0, 1), (20, 30, 30, 0, 1), (35, 45, 244, 0, 1), (35, 45, 45, 0, 1)],
        attention_dp=2,
        interval=5,
    ),
    "interval_ends_at_once_when_nothing_decodes": Probe(
        1,
        5000,
        [(0, [("b", 100)], 1), (7, [("c", 100)], 1), (15, [("d", 100)], 1)],
        [(0, 10, 10, 0, 1), (10, 20, 20, 0, 1), (20, 30, 30, 0, 1)],
        interval=3,
    ),
}


def case_of(probe: Probe) -> tuple[Fleet, RequestBatch]:
    """The probe's fleet and requests."""
    names = {name: k for k, name in enumerate(sorted({n for _, spans, _ in probe.requests for n, _ in spans}))}
    flat = [span for _, spans, _ in probe.requests for span in spans]
    count = len(probe.requests)
    batch = RequestBatch(
        arrival_ms=np.array([arrival for arrival, _, _ in probe.requests], dtype=np.float64),
        delay_ms=np.zeros(count),
        input_tokens=np.array([sum(tokens for _, tokens in spans) for _, spans, _ in probe.requests]),
        output_tokens=np.array([output for _, _, output in probe.requests]),
        session=np.arange(count),
        order=np.arange(count),
        in_flight_cap=None,
        span_offset=np.cumsum([0] + [len(spans) for _, spans, _ in probe.requests]),
        span_id=np.array([names[name] for name, _ in flat]),
        span_tokens=np.array([tokens for _, tokens in flat]),
        output_span=len(names) + np.arange(count),
    )
    pool = Pool(
        "agg", "sglang", 1, probe.attention_dp, probe.attention_dp, probe.blocks, probe.page, 8192, 256,
        FixedTimes(10.0, 1.0), prefill_decode_interval=probe.interval,
    )  # fmt: skip
    return Fleet(agg=pool), batch


def rows_of(outcomes: Outcomes) -> list[tuple[float | None, ...]]:
    """What a probe expects, None for moments that never came."""
    columns = (
        outcomes.first_admit_ms,
        outcomes.first_token_ms,
        outcomes.last_token_ms,
        outcomes.max_reused_tokens,
        outcomes.admissions,
    )
    return [tuple(None if np.isnan(value) else float(value) for value in row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("name", PROBES)
def test_sglang_replay_probe_gives_the_observed_rows(name: str) -> None:
    fleet, batch = case_of(PROBES[name])
    assert rows_of(replay(fleet, batch)) == PROBES[name].expected
    assert rows_of(plain_replay(fleet, batch)) == PROBES[name].expected


def tight_case(seed: int) -> tuple[Fleet, RequestBatch]:
    """A random case whose pool holds one or two of the longest requests, outputs long enough to fill it."""
    fleet, batch = random_case(seed, "sglang")
    assert fleet.agg is not None
    rng = np.random.default_rng(seed)
    batch = replace(batch, output_tokens=batch.output_tokens * rng.integers(0, 6, size=batch.num_requests))
    longest = int((batch.input_tokens + batch.output_tokens).max())
    page = int(rng.choice([1, 1, 4, 16]))
    blocks = int(longest * rng.uniform(1.02, 2.2) / page) + 2
    return Fleet(agg=replace(fleet.agg, block_size=page, num_blocks=blocks, max_num_seqs=256)), batch


@pytest.mark.parametrize("is_tight", [False, True])
def test_sglang_replay_random_cases_agree_with_plain_replay(is_tight: bool) -> None:
    readmissions = stuck = 0
    for seed in seeds(0, 200):
        fleet, batch = tight_case(seed) if is_tight else random_case(seed, "sglang")
        try:
            expected = plain_replay(fleet, batch)
        except StuckError:
            with pytest.raises(StuckError):
                replay(fleet, batch)
            stuck += 1
            continue
        assert_agree(replay(fleet, batch), expected)
        readmissions += int(np.maximum(expected.admissions - 1, 0).sum())
    assert readmissions > 0
    assert stuck < 0.25 * len(seeds(0, 200))


def test_sglang_replay_with_few_radix_nodes_reports_overflow_and_default_room_suffices() -> None:
    fleet, batch = random_case(3, "sglang")
    assert fleet.agg is not None
    table = step_table(fleet.agg.step_times)
    state = build(fleet.agg, batch, radix_nodes=1)
    with pytest.raises(StuckError):
        advance(state, fleet.agg, table, batch)
    assert radix_overflow(state)
    assert_agree(replay(fleet, batch), plain_replay(fleet, batch))
