"""Requests by the replica that serves them, where round robin says so before anything has happened.

Replicas that never meet are replayed one by one or on several threads (see apart): what one of them reads and writes then lies
together, and no two threads write to the same cache lines.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.replay.batch_facts import facts_of
from workers.replay.fleet import KvRouter, Pool
from workers.replay.kept import Kept
from workers.traffic.requests import RequestBatch


@dataclass(frozen=True, slots=True)
class Grouping:
    """requests: int64 [R], which request each row is. first: int64 [R], the row of every session in release order."""

    requests: NDArray[np.int64]
    first: NDArray[np.int64]


_kept = Kept[Grouping](most=64)


def never_meet(batch: RequestBatch, router: KvRouter | None) -> bool:
    """True when no replica can tell what the others do: open loop without sessions, in turn."""
    return router is None and batch.in_flight_cap is None and facts_of(batch).is_plain


def grouping_of(pool: Pool, batch: RequestBatch, router: KvRouter | None) -> Grouping | None:
    """Rows by replica, kept for the next candidates; None where the rows stay those of the batch."""
    # SGLang's runs of pages are laid out by request.
    if pool.replicas == 1 or pool.backend == "sglang" or not never_meet(batch, router):
        return None
    return _kept.of((batch,), lambda: _grouping(batch, pool.replicas), pool.replicas, batch.num_requests)


def _grouping(batch: RequestBatch, replicas: int) -> Grouping:
    first = facts_of(batch).first
    by_replica = np.argsort(np.arange(first.size) % replicas, kind="stable")
    rows = np.empty(first.size, dtype=np.int64)
    rows[by_replica] = np.arange(first.size)
    return Grouping(first[by_replica], rows)
