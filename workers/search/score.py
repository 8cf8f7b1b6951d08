"""From a report to objective values, a score, and one order over candidates.

Source: search.md, section 3 (probes S08, S10); service.md, section 8 (fewest rejected first).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.schemas.goal import Goal

Report = Mapping[str, float | int | None]

MINIMIZED = frozenset({"e2e_latency", "ttft", "min_gpus"})

_SAMPLED = {
    "throughput_per_user": "num_output_token_throughput_per_user_samples",
    "e2e_latency": "num_e2e_latency_samples",
    "ttft": "num_ttft_samples",
}
_FIELD = {
    "throughput": "output_throughput_tok_s",
    "throughput_per_gpu": "output_throughput_tok_s",
    "throughput_per_user": "mean_output_token_throughput_per_user",
    "goodput": "goodput_output_throughput_tok_s",
    "goodput_per_gpu": "goodput_output_throughput_tok_s",
    "e2e_latency": "mean_e2e_latency_ms",
    "ttft": "mean_ttft_ms",
}
_MS_PER_HOUR = 3_600_000.0


def average_gpus(report: Report) -> float:
    """GPUs provisioned on average over the replay; 0 when the report cannot tell."""
    gpu_hours, duration_ms = report.get("gpu_hours") or 0.0, report.get("duration_ms") or 0.0
    return gpu_hours / (duration_ms / _MS_PER_HOUR) if gpu_hours > 0 and duration_ms > 0 else 0.0


def objective(target: str, report: Report, used_gpus: int = 0) -> float | None:
    """Raw value of a target, in its own unit; None if the replay gave it no sample."""
    if target == "min_gpus":
        return float(used_gpus)
    if report.get(_SAMPLED.get(target, "")) == 0:
        return None
    value = report.get(_FIELD[target])
    if value is None or not math.isfinite(value):
        return None
    if not target.endswith("_per_gpu"):
        return float(value)
    gpus = average_gpus(report)
    return value / gpus if gpus > 0 else 0.0


def objectives(goal: Goal, report: Report, used_gpus: int = 0) -> tuple[float | None, ...]:
    """Raw values of every objective of the goal, in its order."""
    return tuple(objective(name, report, used_gpus) for name in goal.objectives)


def signed(target: str, value: float) -> float:
    """The value such that larger is better."""
    return -value if target in MINIMIZED else value


def score(goal: Goal, values: Sequence[float]) -> float:
    """What a scalar goal maximizes; under Pareto the first objective's raw value, which ranks nothing."""
    return values[0] if goal.is_pareto else signed(goal.target, values[0])


def misses_sla(goal: Goal, report: Report) -> list[str]:
    """Bounds that the means of the replay exceed, or that have no sample; inclusive bounds.

    Acts on candidates only under `strict_sla` and `min_gpus`.
    """
    if goal.sla is None:
        return []
    means = {"ttft_ms": "mean_ttft_ms", "itl_ms": "mean_tpot_ms", "e2e_ms": "mean_e2e_latency_ms"}
    missed = []
    for bound, field in means.items():
        limit, value = getattr(goal.sla, bound), report.get(field)
        if limit is not None and (value is None or value > limit):
            missed.append(bound)
    return missed


@dataclass(frozen=True, slots=True)
class Scored:
    """What ranking needs of a candidate.

    values: raw objective values. canonical: canonical JSON of the flat configuration. tie: further criteria, smaller
    first, between score and GPUs (goodput and latency under min_gpus). moving_parts: see candidate.moving_parts.
    """

    canonical: str
    used_gpus: int
    score: float
    values: tuple[float, ...] = ()
    rejected: int = 0
    tie: tuple[float, ...] = ()
    moving_parts: int = 0

    @property
    def simplest_first(self) -> tuple[int, int, str]:
        """Sort key among equal outcomes: fewer GPUs, then fewer moving parts, then canonical JSON."""
        return (self.used_gpus, self.moving_parts, self.canonical)


def rank_key(candidate: Scored) -> tuple[int, float, tuple[float, ...], tuple[int, int, str]]:
    """Sort key, best first: fewest rejected, then score, then the simplest."""
    return (candidate.rejected, -candidate.score, candidate.tie, candidate.simplest_first)


def ranked(candidates: Sequence[Scored]) -> list[Scored]:
    """Best first; a total order, whatever the order of arrival."""
    return sorted(candidates, key=rank_key)
