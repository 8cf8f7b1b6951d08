"""What reports say of the error of interpolated step times."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.workers.replay.test_kernel import closed_loop
from workers.replay import batch_facts
from workers.replay.fleet import Fleet, Pool
from workers.replay.reports import Reports
from workers.timing.fixed import FixedTimes


class BentTimes:
    """Decode times that bend between knots: 1 ms, and a square of the context."""

    def __init__(self, bend: float) -> None:
        self.bend = bend

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        return 1.0

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        return float(self.decode_row(n, np.array([mean_context]))[0]) / 1e6

    def decode_row(self, n: int, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(1e6 * (1.0 + self.bend * contexts**2), dtype=np.int64)

    def known_decodes(self, sizes: range, contexts: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64)

    def known_prefills(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)


def residual(bend: float, *, interpolates: bool) -> float:
    pool = replace(Pool("agg", "vllm", 1, 1, 1, 400, 16, 64, 4, FixedTimes(1.0, 1.0)), step_times=BentTimes(bend))
    batch = closed_loop(6, 2, prompt=200, output=900)
    with (
        patch.object(batch_facts, "_FEW_SHAPES", 0 if interpolates else 16),
        patch.object(batch_facts, "_FEW_TOKENS", 0),
    ):
        return Reports(None).of(Fleet(agg=pool), batch).step_time_residual


def test_report_of_interpolated_step_times_says_how_far_off_they_are() -> None:
    # Between knots a cell apart, w tokens, a square is off by bend * w * w / 4 at most.
    worst = residual(1e-6, interpolates=True)

    assert 1e-5 < worst < 1e-6 * 64 * 64 / 4


def test_report_of_straight_or_asked_step_times_says_that_none_is_off() -> None:
    assert residual(0.0, interpolates=True) == pytest.approx(0.0, abs=1e-9)
    assert residual(1e-6, interpolates=False) == 0.0
