"""Which load predictor forecasts a trace best, one interval ahead, before any candidate is replayed.

Source: search spec, section 6 (probe S12).
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.schemas.policies import PREDICTOR_EXTRA, missing_package
from app.schemas.presets import LoadPredictor
from workers.planner.predictors.catalogue import min_points, new_predictor

MOST_WINDOWS = 120
"""Longer traces are judged by their last windows: some predictors are fitted anew at each one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """One interval of a trace: requests, and the means of their prompt and output tokens (0 without requests)."""

    num_requests: float
    isl: float
    osl: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A configured candidate: its preset's name, or its place among the candidates."""

    name: str
    settings: LoadPredictor


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate's mean loss; None with the reason why there is none."""

    entry: Entry
    loss: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The predictor of one interval. reason: how it was chosen."""

    interval_s: int
    winner: Entry
    reason: str
    num_windows: int = 0
    warm_up: int = 0
    judged: tuple[Judged, ...] = ()


def windows(
    arrival_ms: NDArray[np.float64], isl: NDArray[np.int64], osl: NDArray[np.int64], interval_s: int
) -> list[Window]:
    """The intervals of a trace from the first request's to the last one's; gaps are windows of zeros.

    Args: arrival_ms, isl, osl: [R], ms and tokens.
    """
    place = np.floor(arrival_ms / (interval_s * 1000.0)).astype(np.int64)
    place -= place.min()
    counts = np.bincount(place)
    used = np.maximum(counts, 1)
    means = [np.bincount(place, weights=each) / used for each in (isl, osl)]
    return [Window(*row) for row in zip(counts.astype(np.float64).tolist(), *(m.tolist() for m in means), strict=True)]


def window_loss(forecast: Window, actual: Window) -> float:
    """How far a forecast is off: tokens of prompts and outputs weigh most, mean lengths a little."""

    def apart(one: float, other: float) -> float:
        return abs(math.log1p(max(0.0, one)) - math.log1p(other))

    return (
        0.4 * apart(forecast.num_requests * forecast.isl, actual.num_requests * actual.isl)
        + 0.4 * apart(forecast.num_requests * forecast.osl, actual.num_requests * actual.osl)
        + 0.1 * apart(forecast.isl, actual.isl)
        + 0.1 * apart(forecast.osl, actual.osl)
    )


def mean_loss(settings: LoadPredictor, course: Sequence[Window], interval_s: int, warm_up: int) -> float:
    """Mean over the windows from `warm_up` on, each forecast from those before it; infinite without any.

    Raises: whatever the predictor's library raises.
    """
    losses = [
        window_loss(ahead, actual)
        for ahead, actual in zip(_forecasts(settings, course, interval_s), course, strict=True)
    ][warm_up:]
    return math.fsum(losses) / len(losses) if losses else math.inf


def _forecasts(settings: LoadPredictor, course: Sequence[Window], interval_s: int) -> Iterator[Window]:
    requests, isl, osl = (new_predictor(settings, interval_s) for _ in range(3))
    for actual in course:
        yield Window(requests.predict(), isl.predict(), osl.predict())
        requests.add(actual.num_requests)
        isl.add(actual.isl)
        osl.add(actual.osl)


def without_trace(entries: Sequence[Entry], interval_s: int) -> Choice:
    """Synthetic traffic has nothing to forecast: the first candidate that can run.

    Raises: ValueError if none can.
    """
    return Choice(interval_s, _runnable(entries)[0], "synthetic traffic: the first candidate that is installed")


def choose(entries: Sequence[Entry], course: Sequence[Window], interval_s: int) -> Choice:
    """The candidate with the least loss over the windows, the first one on ties.

    The warm-up is that of all candidates, run or not, so that losses do not depend on what is installed.
    Raises: ValueError if no candidate can run.
    """
    runnable, judged_on = _runnable(entries), course[-MOST_WINDOWS:]
    warm_up = max(min_points(entry.settings) for entry in entries)
    judged = tuple(_judged(entry, judged_on, interval_s, warm_up) for entry in entries)
    finite = [each for each in judged if each.loss is not None]
    if not finite:
        reason = f"no candidate has a loss: {len(judged_on)} windows, {warm_up} of them to warm up"
        return Choice(interval_s, runnable[0], reason, len(judged_on), warm_up, judged)
    best = min(finite, key=lambda each: each.loss or 0.0)
    return Choice(interval_s, best.entry, "least loss", len(judged_on), warm_up, judged)


def _runnable(entries: Sequence[Entry]) -> list[Entry]:
    found = [entry for entry in entries if missing_package(entry.settings) is None]
    if not found:
        raise ValueError(f"every predictor needs the extra {PREDICTOR_EXTRA!r}, which is not installed")
    return found


def _judged(entry: Entry, course: Sequence[Window], interval_s: int, warm_up: int) -> Judged:
    lacking = missing_package(entry.settings)
    if lacking is not None:
        return Judged(entry, None, f"needs {lacking}, of the extra {PREDICTOR_EXTRA!r}, which is not installed")
    try:
        loss = mean_loss(entry.settings, course, interval_s, warm_up)
    except Exception as error:
        _log.warning("predictor %s failed: %s", entry.name, error)
        return Judged(entry, None, f"failed: {type(error).__name__}")
    return Judged(entry, loss) if math.isfinite(loss) else Judged(entry, None, "no window is left after the warm-up")
