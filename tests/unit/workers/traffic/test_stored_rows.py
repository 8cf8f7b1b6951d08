"""Stored columns give the requests that the text itself gives."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.golden.files import trace
from tests.unit.traces.contents import stored
from tests.unit.traces.helpers import field_case, lines, row
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.stored_rows import DamagedTraceError, stored_rows
from workers.traffic.trace_rows import read_rows

TRACES = [
    ("mooncake-sessions.jsonl", 512),
    ("mooncake-bursty-300.jsonl", 512),
    ("mooncake-block64-150.jsonl", 64),
    ("mooncake_arxiv_head1000.jsonl", 512),
    ("dynamo_agent_pi.blk16.mooncake.jsonl", 16),
    ("sharegpt_llama31_300_poisson10.mooncake.jsonl", 512),
]


def differences(found: RequestBatch, known: RequestBatch) -> list[str]:
    """Names of the arrays that differ."""
    pairs = [(each.name, getattr(found, each.name), getattr(known, each.name)) for each in fields(found)]
    return [name for name, one, other in pairs if not _equal(one, other)]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one == other


@pytest.mark.parametrize(("name", "block_size"), TRACES)
@pytest.mark.parametrize("cap", [None, 3])
def test_stored_trace_gives_the_requests_of_its_text(
    tmp_path: Path, name: str, block_size: int, cap: int | None
) -> None:
    text = trace(name)
    kept = stored(tmp_path, text, block_size=block_size)
    drive = TraceDrive(block_size, 2.0, cap)
    found = mooncake_batch(stored_rows(kept.sha256, kept.path), drive)
    assert differences(found, mooncake_batch(read_rows(text, block_size), drive)) == []


@pytest.mark.parametrize("cap", [None, 2])
def test_unsorted_trace_gives_the_requests_of_the_sorted_one(tmp_path: Path, cap: int | None) -> None:
    text = field_case("F02")
    rows = sorted(text.splitlines(keepends=True), key=lambda line: float(line.split(b":")[1].split(b",")[0]))
    kept = stored(tmp_path, text)
    drive = TraceDrive(512, 1.0, cap)
    found = mooncake_batch(stored_rows(kept.sha256, kept.path), drive)
    assert differences(found, mooncake_batch(read_rows(b"".join(rows)), drive)) == []


def test_speedup_halves_rebased_times_and_the_gap(tmp_path: Path) -> None:
    kept = stored(tmp_path, field_case("F12"))
    rows = stored_rows(kept.sha256, kept.path)
    plain, fast = (mooncake_batch(rows, TraceDrive(512, speedup)).arrival_ms for speedup in (1.0, 2.0))
    assert plain[0] == 0.0
    assert np.array_equal(fast, plain / 2)


def test_fractional_arrivals_keep_their_precision(tmp_path: Path) -> None:
    kept = stored(tmp_path, lines(row(timestamp=0.4), row(timestamp=0.8125)))
    assert stored_rows(kept.sha256, kept.path).timestamp_ms.tolist() == [0.0, 0.8125 - 0.4]


def test_ids_of_64_bits_stay_different(tmp_path: Path) -> None:
    big = 2**64 - 1
    kept = stored(tmp_path, lines(row(hash_ids=[big, 1]), row(hash_ids=[big - 1, 1]), row(hash_ids=[big, 2])))
    ids = stored_rows(kept.sha256, kept.path).block_id
    assert ids[0] == ids[4]
    assert ids[0] != ids[2]
    assert ids.min() >= 0


def test_trace_without_ids_has_no_spans(tmp_path: Path) -> None:
    kept = stored(tmp_path, lines(row(hash_ids=None), row(hash_ids=None, timestamp=9)))
    batch = mooncake_batch(stored_rows(kept.sha256, kept.path), TraceDrive(512))
    assert batch.span_id is None
    assert batch.arrival_ms.tolist() == [0.0, 9.0]


def test_content_is_mapped_and_read_once(tmp_path: Path) -> None:
    kept = stored(tmp_path, field_case("F02"))
    rows = stored_rows(kept.sha256, kept.path)
    assert isinstance(rows.timestamp_ms, np.memmap)
    assert not rows.timestamp_ms.flags.writeable
    assert stored_rows(kept.sha256, kept.path) is rows


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    kept = stored(tmp_path, field_case("F02"))
    content = bytearray(kept.path.read_bytes())
    content[100] ^= 1
    kept.path.write_bytes(content)
    with pytest.raises(DamagedTraceError):
        stored_rows(kept.sha256, kept.path)
