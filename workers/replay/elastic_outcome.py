"""What an elastic replay leaves behind: the report and outcomes of a static one, and who was there when."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workers.planner.observation import Role
from workers.replay import state
from workers.replay.disaggregated import Side, mark_arrived
from workers.replay.fleet import Fleet, Pool
from workers.replay.loop import outcomes_of, outcomes_of_both
from workers.replay.metrics import Metric, Sla
from workers.replay.outcomes import Outcomes
from workers.replay.reports import end_of, moments_of
from workers.replay.residual import residual
from workers.replay.roster import EngineLife, Roster, ScaleEvent
from workers.replay.state import State
from workers.replay.summary import summarise
from workers.replay.timeline import DEFAULT_BUCKETS, Timeline, course
from workers.traffic.requests import RequestBatch


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """GPUs provisioned for a role (starting, active and draining engines) from instant_ms[i], float64 [N], until the next.

    gpus: int64 [N].
    """

    instant_ms: NDArray[np.float64]
    gpus: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ElasticOutcome:
    """A finished replay of a fleet that a planner scaled.

    sides: the aggregated pool, or prefill and decode. events: every decision that changed a role, in order. lives: every
    engine, by role and number. num_ticks: how often the planner was asked.
    """

    fleet: Fleet
    sides: tuple[Side, ...]
    rosters: Mapping[Role, Roster]
    events: tuple[ScaleEvent, ...]
    lives: tuple[EngineLife, ...]
    num_ticks: int

    @property
    def st(self) -> State:
        """The state of the engines that emit the tokens."""
        return self.sides[-1].st

    @property
    def end_ms(self) -> float:
        """Last completion, or the virtual-time limit."""
        return end_of(self.st)

    def worker_s(self, role: Role) -> float:
        """Seconds of all engines of a role, from creation to removal or the end."""
        return sum(_span_ms(life, self.end_ms) for life in self.lives if life.role == role) / 1000.0

    def gpu_seconds(self) -> dict[Role, float]:
        """GPU-seconds of every role of the fleet."""
        return {role: self.worker_s(role) * self._pool(role).gpus_per_replica for role in self.rosters}

    def report(self, sla: Sla | None = None) -> dict[str, Metric]:
        """Every key of the trace report of a static replay, and the number of ticks."""
        if len(self.sides) == 2:
            mark_arrived(*self.sides)
        values = summarise(self.st, self.fleet.agg or self._pool("decode"), sla, 1, self.fleet.prefill)
        values["prefill_worker_seconds"] = self.worker_s("prefill")
        values["decode_worker_seconds"] = self.worker_s("agg") + self.worker_s("decode")
        values["gpu_hours"] = sum(self.gpu_seconds().values()) / 3600.0
        values["planner_total_ticks"] = self.num_ticks
        return values

    def outcomes(self, batch: RequestBatch) -> Outcomes:
        """Per-request arrays and pooled token gaps; workers are numbers of engines."""
        last = self.sides[-1]
        pair = (self.sides[0], last) if len(self.sides) == 2 else None
        plain = outcomes_of_both(*pair, batch) if pair else outcomes_of(last.st, last.pool, batch)
        prefill_worker = plain.prefill_worker
        if pair:
            num_dp, ends = pair[0].pool.attention_dp, pair[0].st["stamps"][:, state.END]
            engine = self.rosters["prefill"].engine_of(prefill_worker // num_dp, ends)
            prefill_worker = np.where(prefill_worker >= 0, engine * num_dp + prefill_worker % num_dp, -1).astype(
                np.int32
            )
        return replace(
            plain,
            worker=self.rosters["decode" if pair else "agg"].engine_of(plain.worker, plain.end_ms),
            prefill_worker=prefill_worker,
            prefill_worker_s=self.worker_s("prefill"),
            decode_worker_s=self.worker_s("agg") + self.worker_s("decode"),
        )

    def gpu_timeline(self, role: Role) -> GpuTimeline:
        """GPUs of a role over time, from 0 on."""
        changes: dict[float, int] = {0.0: 0}
        for life in self.lives:
            if life.role == role:
                changes[life.created_ms] = changes.get(life.created_ms, 0) + 1
                if life.removed_ms is not None:
                    changes[life.removed_ms] = changes.get(life.removed_ms, 0) - 1
        instants = sorted(changes)
        engines = np.cumsum([changes[instant] for instant in instants])
        return GpuTimeline(np.array(instants), engines * self._pool(role).gpus_per_replica)

    def course(self, num_buckets: int = DEFAULT_BUCKETS) -> Timeline:
        """The replay in buckets; KV use is a share of what the engines present in a bucket could hold.

        Raises: ValueError when num_buckets is outside 1..500.
        """
        whole = course(moments_of(self.st), self.end_ms, 1, num_buckets)
        role: Role = "agg" if self.fleet.agg else "decode"
        pool = self._pool(role)
        edges = whole.edge_ms
        present_ms = np.zeros(max(0, edges.size - 1))
        for life in self.lives:
            if life.role == role:
                removed_ms = self.end_ms if life.removed_ms is None else life.removed_ms
                present_ms += np.diff(np.clip(edges, life.created_ms, removed_ms))
        capacity = present_ms / np.diff(edges) * (pool.num_blocks * pool.block_size * pool.attention_dp)
        return replace(whole, kv_used_ratio=whole.kv_tokens / np.maximum(capacity, 1.0))

    def step_time_residual(self) -> float:
        """As `residual.residual`."""
        return residual(self.st, self.sides[-1].pool)

    def _pool(self, role: Role) -> Pool:
        pool = {"agg": self.fleet.agg, "prefill": self.fleet.prefill, "decode": self.fleet.decode}[role]
        assert pool is not None
        return pool


def _span_ms(life: EngineLife, end_ms: float) -> float:
    removed_ms = end_ms if life.removed_ms is None else min(life.removed_ms, end_ms)
    return max(0.0, removed_ms - life.created_ms)
