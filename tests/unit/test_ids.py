"""Ids and fingerprints."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.ids import canonical_json, fingerprint, uuid7


def test_uuid7_is_of_version_7_and_tells_the_time() -> None:
    made = uuid7()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert abs((made.int >> 80) - time.time() * 1000) < 60_000


def test_uuid7_rises_within_a_process_and_never_repeats() -> None:
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: [uuid7() for _ in range(5000)], range(4)))
    assert all(batch == sorted(batch) for batch in batches)
    assert len({each for batch in batches for each in batch}) == 20_000


def test_fingerprint_ignores_the_order_of_keys_only() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"b": [1, 2]}) != fingerprint({"b": [2, 1]})


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"a": float("nan")})
