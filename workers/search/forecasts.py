"""The load predictors of a study: chosen once per throughput interval, written into its plan and its candidates.

Source: search.md, section 6.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from app.schemas.plan import LoadPredictorPlan, PredictorLossPlan
from app.schemas.policies import named_predictors, throughput_intervals
from app.schemas.presets import LoadPredictor
from app.schemas.study import SmartSearchConfig
from workers.planner.subsweep import Choice, Entry, choose, windows, without_trace
from workers.search.planners import Predictors
from workers.traffic.stored_rows import stored_rows
from workers.traffic.workload import TraceFile

_OWN_FIELDS = {
    "constant": (),
    "arima": (),
    "prophet": ("prophet_window_size",),
    "kalman": ("kalman_q_level", "kalman_q_trend", "kalman_r", "kalman_min_points"),
}


def chosen_predictors(config: SmartSearchConfig, trace: TraceFile | None) -> list[LoadPredictorPlan]:
    """One choice per interval; of a trace that is not at hand only the intervals.

    Raises: ValueError if no candidate can run here; DamagedTraceError, OSError as `stored_rows`.
    """
    entries = [Entry(name, settings) for name, settings in named_predictors(config.search_space)]
    intervals = throughput_intervals(config)
    if not config.workload.is_trace_based:
        return [_document(without_trace(entries, interval)) for interval in intervals]
    if trace is None:
        reason = "chosen from the trace when the study is planned"
        return [LoadPredictorPlan(interval_s=interval, reason=reason) for interval in intervals]
    return [_document(_by_trace(config, entries, trace, interval)) for interval in intervals]


def predictor_fields(plans: Iterable[LoadPredictorPlan]) -> Predictors:
    """The planner fields of each interval's winner."""
    return {each.interval_s: each.fields for each in plans if each.fields is not None}


def _by_trace(config: SmartSearchConfig, entries: list[Entry], trace: TraceFile, interval_s: int) -> Choice:
    """On the clock of the replay; a later turn of a session, which has no stamp, is left out."""
    rows = stored_rows(trace.sha256, trace.path)
    known = ~np.isnan(rows.timestamp_ms)
    arrival_ms = rows.timestamp_ms[known] / config.workload.arrival_speedup_ratio
    course = windows(arrival_ms, rows.input_tokens[known], rows.output_tokens[known], interval_s)
    return choose(entries, course, interval_s)


def _document(choice: Choice) -> LoadPredictorPlan:
    return LoadPredictorPlan(
        interval_s=choice.interval_s,
        winner=choice.winner.name,
        fields=_fields(choice.winner.settings),
        reason=choice.reason,
        num_windows=choice.num_windows,
        warm_up=choice.warm_up,
        candidates=[
            PredictorLossPlan(name=each.entry.name, loss=each.loss, reason=each.reason) for each in choice.judged
        ],
    )


def _fields(settings: LoadPredictor) -> dict[str, Any]:
    """The family, its logarithm, and what else the family reads."""
    names = ("load_predictor", "load_predictor_log1p", *_OWN_FIELDS[settings.load_predictor])
    return {name: getattr(settings, name) for name in names}
