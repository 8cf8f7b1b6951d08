"""How far a replay is from its reference: metric by metric, request by request."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.cases import ReferenceCase
from workers.replay.outcomes import COMPLETED, UNFINISHED, Outcomes
from workers.traffic.requests import RequestBatch

EXACT, AIC = 1e-9, 2e-3
# The reference answers these from a quantile sketch that is up to 0.1 % off the true value; the rest is rounding.
SKETCH_EXACT, SKETCH_AIC = 1e-3 * (1 + 1e-9), 3e-3
# The spread of equal values is pure rounding noise in either simulator.
STD_NOISE_MS = 1e-6

_SKETCHED_STEMS = ("itl_ms", "output_token_throughput_per_user")
_SKETCHED_STATISTICS = ("median", "p75", "p90", "p95", "p99")
SKETCHED = frozenset(f"{statistic}_{stem}" for statistic in _SKETCHED_STATISTICS for stem in _SKETCHED_STEMS)
# Figures of the host, of the power model and of agent trajectories; no replay metrics here.
IGNORED = frozenset(
    {"wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s", "power_w", "power_coverage"}
)


@dataclass(frozen=True, slots=True)
class Deviation:
    """One compared value; `relative` is infinite where only one side has it."""

    name: str
    ours: Any
    reference: Any
    relative: float
    tolerance: float

    @property
    def is_out(self) -> bool:
        """Whether the deviation exceeds its tolerance."""
        return not self.relative <= self.tolerance


def relative_deviation(name: str, ours: Any, reference: Any) -> float:
    """Deviation of one value relative to the larger side.

    The reference reports 0.0 where there is no sample and we report None: equal. Deviations of rounding size are 0.
    """
    if ours is None or reference is None:
        return 0.0 if (ours or 0.0) == 0.0 and (reference or 0.0) == 0.0 else math.inf
    gap = abs(ours - reference)
    noise = STD_NOISE_MS if name.startswith("std_") else EXACT
    if gap <= noise:
        return 0.0
    return float(gap / max(abs(ours), abs(reference)))


def tolerance_of(name: str, is_aic: bool) -> float:
    """Allowed relative deviation of a metric under exact or op-level timing."""
    if name in SKETCHED:
        return SKETCH_AIC if is_aic else SKETCH_EXACT
    return AIC if is_aic else EXACT


def compare_metrics(
    ours: Mapping[str, Any], expected: Mapping[str, Any], is_aic: bool, unstable: Sequence[str] = ()
) -> list[Deviation]:
    """Every numeric metric of the reference, except host figures and those it does not repeat itself."""
    deviations = []
    for name, reference in expected.items():
        is_number = reference is None or (isinstance(reference, int | float) and not isinstance(reference, bool))
        if not is_number or name in IGNORED or name in unstable or "traject" in name or name.startswith("agentic"):
            continue
        relative = relative_deviation(name, ours[name], reference) if name in ours else math.inf
        deviations.append(Deviation(name, ours.get(name), reference, relative, tolerance_of(name, is_aic)))
    return deviations


def request_rows(case: ReferenceCase, outcomes: Outcomes) -> list[dict[str, Any]]:
    """One mapping per request that ended, under the reference's field names; it lists no unfinished ones either."""
    batch = case.batch
    pool = case.fleet.agg or case.fleet.decode
    ranks = pool.attention_dp if pool else 1
    # Of a disaggregated request the reference lists what its prefill engine reused.
    reused = outcomes.max_reused_tokens if case.fleet.agg else outcomes.first_reused_tokens
    status = [_terminal_status(case, outcomes, r) for r in range(batch.num_requests)]
    places = outcomes.worker * ranks + np.maximum(outcomes.dp_rank, 0)
    turn = np.arange(batch.num_requests) - np.searchsorted(batch.session, batch.session)
    return [
        {
            "session_id": case.session_names[batch.session[r]],
            "turn_index": int(turn[r]),
            "input_length": _known_prompt(batch, outcomes, r, int(turn[r])),
            "output_length": int(outcomes.generated_tokens[r]),
            "arrival_time_ms": _moment(outcomes.arrival_ms[r]),
            "first_admit_ms": _moment(outcomes.first_admit_ms[r]),
            "first_token_ms": _moment(outcomes.first_token_ms[r]),
            "last_token_ms": _moment(outcomes.last_token_ms[r]),
            "reused_input_tokens": int(reused[r]),
            "first_reused_tokens": int(outcomes.first_reused_tokens[r]),
            "admission_count": int(outcomes.admissions[r]),
            "prefill_worker_idx": _index(outcomes.prefill_worker[r]),
            "decode_worker_idx": None if status[r] == "failed" else _index(places[r]),
            "worker": _index(outcomes.worker[r]),
            "dp_rank": _index(outcomes.dp_rank[r]),
            "terminal_status": status[r],
        }
        for r in np.flatnonzero(outcomes.status != UNFINISHED)
    ]


def _known_prompt(batch: RequestBatch, outcomes: Outcomes, r: Any, turn: int) -> int:
    """Prompt tokens of a request; a turn that repeats outputs which a limit had cut is that much shorter (and refused)."""
    prompt = int(batch.input_tokens[r])
    if batch.span_offset is None or batch.span_id is None or batch.output_span is None:
        return prompt
    spans = set(batch.span_id[batch.span_offset[r] : batch.span_offset[r + 1]].tolist())
    earlier = [e for e in range(r - turn, r) if int(batch.output_span[e]) in spans]
    return prompt - sum(int(batch.output_tokens[e] - outcomes.generated_tokens[e]) for e in earlier)


def _terminal_status(case: ReferenceCase, outcomes: Outcomes, r: int) -> str:
    """A request that the decode engines can never hold has failed; one that its first engine refuses is rejected."""
    if outcomes.status[r] == COMPLETED:
        return "completed"
    prefill = case.fleet.prefill
    if prefill is None:
        return "rejected"
    was_refused_first = outcomes.prefill_worker[r] >= 0 if prefill.backend == "sglang" else not outcomes.admissions[r]
    return "rejected" if was_refused_first else "failed"


def _moment(value: np.float64) -> float | None:
    """A moment, None when it never came."""
    return None if np.isnan(value) else float(value)


def _index(value: np.int32) -> int | None:
    """An index, None when there is none."""
    return None if value < 0 else int(value)


def reference_rows(case: Mapping[str, Any], by_id: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The reference's requests under the same field names, from whichever form the case has; None without any."""
    table = by_id.get(case["id"]) or case.get("requests")
    if table:
        fields = table.get("fields") or table["columns"]
        return [dict(zip(fields, row, strict=True)) for row in table["rows"]]
    rows = case.get("expected", {}).get("per_request")
    if rows is None:
        return None
    return [_probe_row(row, "prefill" in case["config"]["engine"]["workers"]) for row in rows]


def _probe_row(row: Mapping[str, Any], is_disaggregated: bool) -> dict[str, Any]:
    """One request of an engine probe; both roles admit a disaggregated one, so its admissions are not compared."""
    fields = {
        "arrival_time_ms": row["arrival_ms"],
        "input_length": row["input"],
        "output_length": row["output"],
        "first_token_ms": row["first_token_ms"],
        "last_token_ms": row["last_token_ms"],
        "terminal_status": row["status"],
    }
    if is_disaggregated or not row["admissions"]:
        return fields
    return fields | {
        "dp_rank": row["dp_rank"],
        "worker": row["worker"],
        "first_admit_ms": row["admissions"][0][0],
        "first_reused_tokens": row["admissions"][0][1],
        "reused_input_tokens": max(reused for _, reused in row["admissions"]),
        "admission_count": len(row["admissions"]),
    }


def compare_rows(ours: list[dict[str, Any]], reference: list[dict[str, Any]], is_aic: bool) -> Iterator[Deviation]:
    """Every field of every request, both sides in one canonical order; fields we do not know are passed over."""
    fields = sorted(set(ours[0]).intersection(*reference)) if ours and reference else []
    fields = [name for name in fields if not all(row[name] is None for row in reference)]
    if len(ours) != len(reference):
        yield Deviation("requests", len(ours), len(reference), math.inf, 0.0)
        return

    def key(row: Mapping[str, Any]) -> list[tuple[bool, str, float]]:
        names = ("session_id", "turn_index", "arrival_time_ms", *fields)
        return [_sortable(row.get(name)) for name in names if name in fields]

    tolerance = tolerance_of("", is_aic)
    for mine, theirs in zip(sorted(ours, key=key), sorted(reference, key=key), strict=True):
        for name in fields:
            if isinstance(theirs[name], str):
                relative = 0.0 if mine[name] == theirs[name] else math.inf
            else:
                relative = relative_deviation(name, mine[name], theirs[name])
            yield Deviation(f"request.{name}", mine[name], theirs[name], relative, tolerance)


def _sortable(value: Any) -> tuple[bool, str, float]:
    """A sort key for text, numbers and None; numbers to a nanosecond."""
    if value is None:
        return (True, "", 0.0)
    return (False, value, 0.0) if isinstance(value, str) else (False, "", round(value, 6))
