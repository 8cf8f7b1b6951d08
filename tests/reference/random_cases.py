"""Small random fleets and batches, one per seed: the plain replay and a kernel must agree on every one of them.

`random_case(seed, backend, mode)` is a pure function of its arguments; `assert_agree` compares two replays.
Some cases are stuck by design (pool too small): then both sides must raise StuckError.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import count
from typing import Literal

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from tests.reference.step_times import ConstantTimes, GrowingTimes
from workers.replay.fleet import Fleet, Pool, RoleName, StepTimes, Transfer
from workers.replay.metrics import Metric
from workers.replay.outcomes import Outcomes
from workers.traffic.requests import RequestBatch

Backend = Literal["vllm", "sglang", "trtllm"]
Mode = Literal["aggregated", "disaggregated"]
Feature = Literal["speculation", "attention_dp", "context_limit", "no_cache", "no_chunking", "interval"]
ALL_FEATURES: tuple[Feature, ...] = (
    "speculation", "attention_dp", "context_limit", "no_cache", "no_chunking", "interval",
)  # fmt: skip


def seeds(first: int, count: int) -> range:
    """`count` seeds from `first` on, or as many as SPICA_EXAMPLES asks for if that is more."""
    return range(first, first + max(count, int(os.environ.get("SPICA_EXAMPLES", "0"))))


def random_case(
    seed: int, backend: Backend, mode: Mode = "aggregated", features: tuple[Feature, ...] = ALL_FEATURES
) -> tuple[Fleet, RequestBatch]:
    """Case number `seed`: every allowed feature is on in about a quarter of the cases."""
    rng = np.random.default_rng([seed, len(backend), len(mode)])
    chosen = tuple(feature for feature in features if rng.random() < 0.25)
    batch = random_batch(rng)
    longest = int((batch.input_tokens + batch.output_tokens).max())
    if mode == "aggregated":
        return Fleet(agg=random_pool(rng, "agg", backend, longest, chosen)), batch
    prefill = random_pool(rng, "prefill", backend, longest, chosen)
    decode = random_pool(rng, "decode", backend, longest, chosen)
    shared = {name: getattr(prefill, name) for name in ("block_size", "acceptance", "context_length")}
    decode = replace(decode, **shared)
    if decode.num_blocks * decode.block_size < longest:
        decode = replace(decode, num_blocks=-(-2 * longest // decode.block_size))
    return Fleet(prefill=prefill, decode=decode, transfer=_random_transfer(rng)), batch


def random_pool(rng: Generator, role: RoleName, backend: Backend, longest: int, chosen: tuple[Feature, ...]) -> Pool:
    """One role's engines; the pool is tight (about one to four longest requests) in two of three cases."""
    block_size = int(rng.choice([1, 1, 4, 16])) if backend == "sglang" else int(rng.choice([2, 4, 8, 16]))
    room = longest * rng.uniform(0.9, 4.0) if rng.random() < 0.67 else longest * 40
    attention_dp = int(rng.integers(2, 4)) if "attention_dp" in chosen else 1
    interval = int(rng.integers(2, 5)) if "interval" in chosen else 0
    return Pool(
        role=role,
        backend=backend,
        replicas=int(rng.integers(1, 4)),
        attention_dp=attention_dp,
        gpus_per_replica=attention_dp,
        num_blocks=max(2, int(room / block_size)),
        block_size=block_size,
        max_num_batched_tokens=int(rng.choice([8, 17, 32, 64, 8192])),
        max_num_seqs=int(rng.choice([1, 2, 3, 5, 256])),
        step_times=_random_times(rng),
        prefix_caching="no_cache" not in chosen,
        chunked_prefill="no_chunking" not in chosen,
        context_length=int(longest * rng.uniform(0.5, 1.1)) if "context_limit" in chosen else None,
        acceptance=_accept_some(rng, int(rng.integers(1, 5))) if "speculation" in chosen else (),
        prefill_schedule_interval=interval if interval and backend == "vllm" and attention_dp > 1 else 1,
        prefill_decode_interval=interval if backend == "sglang" else 0,
    )


def random_batch(rng: Generator) -> RequestBatch:
    """3 to 24 sessions of 1 to 4 turns, open or closed loop, prompts partly shared, cumulative or fresh turns."""
    num_sessions, turns = int(rng.integers(3, 25)), int(rng.choice([1, 1, 1, 2, 4]))
    prompts = _Prompts(rng, cumulative=bool(rng.random() < 0.5))
    rows = [row for session in range(num_sessions) for row in prompts.session(session, turns)]
    is_first = np.array([turn == 0 for _, turn, _, _ in rows])
    closed = bool(rng.random() < 0.5)
    arrival = np.where(is_first, 0.0 if closed else _random_arrivals(rng, rows), np.nan)
    firsts = arrival[is_first]
    delay = np.where(is_first, 0.0, rng.choice([0.0, 0.0, 7.5, 40.0], size=len(rows)))
    spans = [spans for _, _, spans, _ in rows]
    unshared = turns == 1 and bool(rng.random() < 0.3)
    flat = [span for row in spans for span in row]
    return RequestBatch(
        arrival_ms=arrival,
        delay_ms=delay,
        input_tokens=np.array([sum(tokens for _, tokens in row) for row in spans], dtype=np.int64),
        output_tokens=np.array([output for _, _, _, (_, output) in rows], dtype=np.int64),
        session=np.array([session for session, _, _, _ in rows], dtype=np.int64),
        order=np.arange(num_sessions) if closed else np.argsort(firsts, kind="stable"),
        in_flight_cap=int(rng.integers(1, num_sessions + 2)) if closed else None,
        span_offset=None if unshared else np.cumsum([0] + [len(row) for row in spans]),
        span_id=None if unshared else np.array([span for span, _ in flat], dtype=np.int64),
        span_tokens=None if unshared else np.array([tokens for _, tokens in flat], dtype=np.int64),
        output_span=None if unshared else np.array([span for _, _, _, (span, _) in rows], dtype=np.int64),
    )


Span = tuple[int, int]
Row = tuple[int, int, list[Span], Span]


class _Prompts:
    """Draws (session, turn, prompt spans, output span); a third of the sessions start with a shared prefix."""

    def __init__(self, rng: Generator, cumulative: bool) -> None:
        self.rng = rng
        self.cumulative = cumulative
        self.fresh: Iterator[int] = count(1000)
        self.longest = int(rng.choice([12, 40, 90]))

    def session(self, session: int, turns: int) -> Iterator[Row]:
        """The turns of one session in order."""
        history: list[Span] = self._shared_prefix()
        for turn in range(turns):
            spans = [*history, (next(self.fresh), int(self.rng.integers(1, self.longest)))]
            output = (next(self.fresh), int(self.rng.choice([0, 1, 1, 2, 2, 5, 5, 9, 9, 20, 20, 45, 45])))
            yield session, turn, spans, output
            history = [*spans, output] if self.cumulative else history

    def _shared_prefix(self) -> list[Span]:
        group, depth = int(self.rng.integers(0, 3)), int(self.rng.integers(0, 4))
        sizes = (8, 16, 11)
        return [(10 * group + level, sizes[level]) for level in range(depth)] if self.rng.random() < 0.6 else []


def _random_arrivals(rng: Generator, rows: list[Row]) -> NDArray[np.float64]:
    """Bursts and gaps in quarter milliseconds, so that arrivals do meet pass ends; not always in session order."""
    gaps = rng.choice([0.0, 0.0, 0.25, 3.0, 17.0, 60.0], size=len(rows))
    arrival = np.cumsum(gaps) - gaps[0]
    return rng.permutation(arrival) if rng.random() < 0.2 else arrival


def _random_times(rng: Generator) -> StepTimes:
    return GrowingTimes() if rng.random() < 0.6 else ConstantTimes(prefill=10.0, decode=1.0)


def _accept_some(rng: Generator, drafts: int) -> tuple[float, ...]:
    """The first few drafts always accepted, the others never: no random numbers involved."""
    accepted = int(rng.integers(0, drafts + 1))
    return (1.0,) * accepted + (0.0,) * (drafts - accepted)


def _random_transfer(rng: Generator) -> Transfer:
    timing: Literal["full_prompt", "destination_missing"] = (
        "full_prompt" if rng.random() < 0.5 else "destination_missing"
    )
    return Transfer(float(rng.choice([0.0, 5e5])), bandwidth_gb_per_s=1.0, timing=timing)


def assert_agree(ours: Outcomes, plain: Outcomes) -> None:
    """Every field equal: counts and statuses exactly, times to 1e-9 relative; gaps as pooled multisets."""
    for field in fields(Outcomes):
        if field.name not in ("gap_ms", "gap_count"):
            a, b = getattr(ours, field.name), getattr(plain, field.name)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=field.name)
    np.testing.assert_allclose(_gaps(ours), _gaps(plain), rtol=1e-9, atol=1e-9, err_msg="gap_ms")


def assert_same_report(ours: Mapping[str, Metric], expected: Mapping[str, Metric]) -> None:
    """The same metrics, to 1e-12 relative."""
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert ours[key] == (None if value is None else pytest.approx(value, rel=1e-12, abs=0.0)), key


def _gaps(outcomes: Outcomes) -> NDArray[np.float64]:
    return np.sort(np.repeat(outcomes.gap_ms, outcomes.gap_count))
