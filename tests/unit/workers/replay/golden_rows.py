"""The three notations in which reference cases give requests, as one: a row per request with named moments."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden import files
from workers.cases import ReferenceCase
from workers.replay.outcomes import REJECTED, Outcomes

Row = dict[str, float | None]

_ROUNDED = {
    f"{quantile}_{stem}"
    for quantile in ("median", "p75", "p90", "p95", "p99")
    for stem in ("itl_ms", "output_token_throughput_per_user")
}
_HOST = {"wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s", "processed_tokens"}


def relative_tolerance(metric: str) -> float:
    """1e-9, but 0.2 % where the peer answers from a sketch (documented as about 0.1 %)."""
    return 2e-3 if metric in _ROUNDED else 1e-9


def expected_metrics(case: dict[str, Any]) -> dict[str, float]:
    """Every expected number that describes the simulated system, not the host that simulated it."""
    numbers = {key: value for key, value in case["expected"].items() if type(value) in (int, float)}
    return {key: value for key, value in numbers.items() if key not in _HOST}


def expected_rows(file: str, case: dict[str, Any], reference: ReferenceCase) -> dict[int, Row]:
    """Expected moments by request index, for the requests the case lists."""
    if "requests" in case:
        return _by_name(case["requests"]["columns"], case["requests"]["rows"], reference)
    if file == "oracle-public" and case["id"] in files.document("oracle-public-requests"):
        found = files.document("oracle-public-requests")[case["id"]]
        return _by_name(found["fields"], found["rows"], reference)
    return {}


def _by_name(fields: list[str], rows: list[list[Any]], reference: ReferenceCase) -> dict[int, Row]:
    known = {"session_id", "turn_index", "terminal_status"}
    index: dict[tuple[str, int], int] = {}
    for request, session in enumerate(reference.batch.session.tolist()):
        name = reference.session_names[session]
        turn = sum(1 for (other, _) in index if other == name)
        index[name, turn] = request
    found = {}
    for row in rows:
        named = dict(zip(fields, row, strict=True))
        found[index[named["session_id"], named["turn_index"] or 0]] = {k: v for k, v in named.items() if k not in known}
    return found


def observed_row(outcomes: Outcomes, reference: ReferenceCase, request: int) -> Row:
    """The same moments of a replay; the peer numbers engines by rank and reports reuse of the prefill side alone."""
    fleet = reference.fleet
    decode = fleet.agg or fleet.decode
    assert decode is not None
    is_aggregated = fleet.agg is not None

    def at(values: NDArray[Any]) -> float | None:
        return None if np.isnan(values[request]) else float(values[request])

    reuse = outcomes.max_reused_tokens if is_aggregated else outcomes.first_reused_tokens
    return {
        "input_length": at(reference.batch.input_tokens),
        "output_length": at(outcomes.generated_tokens),
        "arrival_time_ms": at(outcomes.arrival_ms),
        "first_admit_ms": at(outcomes.first_admit_ms),
        "prefill_admit_ms": at(outcomes.first_admit_ms),
        "first_token_ms": at(outcomes.first_token_ms),
        "last_token_ms": at(outcomes.last_token_ms),
        "reused_input_tokens": at(reuse),
        "admission_count": at(outcomes.admissions),
        "prefill_worker_idx": None if is_aggregated else at(outcomes.prefill_worker),
        "decode_worker_idx": float(outcomes.worker[request] * decode.attention_dp + outcomes.dp_rank[request]),
    }


def probe_moments(per_request: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Engine probes list anonymous requests: sorted tuples of everything they say."""
    return sorted(
        (
            r["arrival_ms"],
            r["input"],
            r["output"],
            r["status"] == "rejected",
            r["first_token_ms"] or -1.0,
            r["last_token_ms"] or -1.0,
            len(r["admissions"]),
            r["admissions"][0][1] if r["admissions"] else 0,
        )
        for r in per_request
    )


def observed_moments(outcomes: Outcomes, reference: ReferenceCase) -> list[tuple[Any, ...]]:
    """The same tuples of a replay."""
    o, batch = outcomes, reference.batch
    return sorted(
        (
            float(o.arrival_ms[r]),
            int(batch.input_tokens[r]),
            int(o.generated_tokens[r]),
            bool(o.status[r] == REJECTED),
            float(np.nan_to_num(o.first_token_ms[r], nan=-1.0)),
            float(np.nan_to_num(o.last_token_ms[r], nan=-1.0)),
            int(o.admissions[r]),
            int(o.first_reused_tokens[r]),
        )
        for r in range(batch.num_requests)
    )
