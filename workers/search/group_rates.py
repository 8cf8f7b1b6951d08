"""What every group of a branch can reach (bounds), and what it does once it runs steadily (expectations).

A group is a cell with one batching; both come from the same curves, one per engine and limits (see `bounds`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape
from workers.capacity.kv_blocks import blocks_per_rank
from workers.errors import EvaluationError
from workers.search import bounds
from workers.search.bounds import Curve, Load, Times
from workers.search.facts import Facts
from workers.search.knobs import Batching
from workers.search.planners import scales
from workers.search.space import Branch, Space
from workers.search.steady import Steady, agg_steady, decode_steady, expected_gains

_RESOLUTION = 0.01
"""Expectations of look-alikes that differ by less than this are one."""

_MOST_GROUPS = 4096

TimesOf = Callable[[str, ParallelShape], Times]
"""Backend and shape to step times. Raises: EvaluationError without data."""


class GroupRates:
    """The rates of every group of a branch under a load."""

    def __init__(self, space: Space, branch: Branch, load: Load, facts: Facts, times: TimesOf) -> None:
        entries, backend = branch.entries[branch.cells[:, 0]].astype(np.int64), branch.cells[:, 1].astype(np.int64)
        names = ("agg",) if branch.mode == "agg" else ("prefill", "decode")
        self._branch, self._load = branch, load
        self._roles = [_RoleRates(space, branch, place, name, load, facts) for place, name in enumerate(names)]
        self._picked: list[Any] = []
        for place, role in enumerate(self._roles):
            role.fill(times, np.unique(np.column_stack([backend, entries[:, place]]), axis=0))
            at = np.array([role.limits.index(each[place]) for each in branch.batching], dtype=np.int64)
            self._picked.append((backend[:, None], entries[:, place][:, None], at[None, :]))

    def bounds(self, targets: tuple[str, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds of the static options and of the scaled ones, float64 [M, C * L] each."""
        branch, load, picked = self._branch, self._load, self._picked
        step_ms, prompt_ms = self._roles[-1].step_ms[picked[-1]], self._roles[0].prompt_ms[picked[0]]
        steps = (load.handed_over if branch.mode == "disagg" else load.osl - 1) / load.tokens_per_step
        alone_ms, step_ms = (prompt_ms + steps * step_ms).reshape(-1), step_ms.reshape(-1)

        def bounded(rates: list[NDArray[np.float64]], gpus: NDArray[Any]) -> NDArray[np.float64]:
            rate = np.minimum.reduce([each[where] for each, where in zip(rates, picked, strict=True)])
            known = np.broadcast_to(gpus, rate.shape).astype(np.float64).reshape(-1)
            return bounds.gain_bounds(targets, rate.reshape(-1), alone_ms, step_ms, known, load)

        static = bounded([role.rate for role in self._roles], branch.gpus()[branch.cells[:, 0]][:, None])
        if not any(scales(planner) for planner in branch.planners):
            return static, static
        engine_rates = [role.engine_rate for role in self._roles]
        gpus = _gpus_per_request(
            branch, [each[where] for each, where in zip(engine_rates, picked, strict=True)], picked
        )
        whole, per_gpu = bounded([role.largest_rate for role in self._roles], gpus), bounded(engine_rates, gpus)
        is_per_gpu = np.array([target.endswith("_per_gpu") for target in targets])
        return static, np.where(is_per_gpu[:, None], per_gpu, whole)

    def steady(self, targets: tuple[str, ...], in_flight: NDArray[np.float64]) -> NDArray[np.float64]:
        """What to expect at so many requests in flight, larger is better: float64 [M, G, S]; see `expected_gains`.

        Args: in_flight, float64 [G, S].
        """
        last = self._roles[-1]
        picked = [tuple(index.reshape(-1) for index in np.broadcast_arrays(*each)) for each in self._picked]
        offered = self._roles[0].rate[picked[0]] if self._branch.mode == "disagg" else None
        gpus = self._branch.gpus()[self._branch.cells[:, 0]].repeat(len(self._branch.batching)).astype(np.float64)
        return expected_gains(
            targets, last.steady(picked[-1], in_flight, offered), in_flight, gpus[:, None], self._load
        )


def look_alikes(branch: Branch) -> NDArray[np.int64]:
    """A number per group, equal where only replicas and `max_num_seqs` differ: int64 [G]."""
    shapes = list(dict.fromkeys(role.shape for role in branch.roles))
    shape_of = np.array([shapes.index(role.shape) for role in branch.roles], dtype=np.int64)
    tokens = [tuple(each.max_num_batched_tokens for each in batching) for batching in branch.batching]
    token_of = np.array([tokens.index(each) for each in tokens], dtype=np.int64)
    cells = np.column_stack([branch.cells[:, 1], shape_of[branch.entries[branch.cells[:, 0]]]])
    _, kind = np.unique(cells, axis=0, return_inverse=True)
    groups = kind.reshape(-1)[:, None] * len(tokens) + token_of[None, :]
    return np.asarray(groups.reshape(-1), dtype=np.int64)


def promising_loads(
    expected: NDArray[np.float64], kind: NDArray[np.int64], groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Loads of these groups in descending order of what is expected, look-alikes of about the same left out: int64 [K].

    A load is numbered group * S + place. Args: expected, float64 [M, G, S]; kind, int64 [G]; groups, best first; beyond
    two objectives only the first `_MOST_GROUPS` count, as fronts of more take long to find.
    """
    num_targets, _, num_loads = expected.shape
    groups = groups if num_targets <= 2 else groups[:_MOST_GROUPS]
    rows = (groups[:, None] * num_loads + np.arange(num_loads)).reshape(-1)
    points = expected.reshape(num_targets, -1)[:, rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        coarse = np.round(np.sign(points) * np.log(np.abs(points)) / _RESOLUTION)
    alike = np.vstack([coarse, kind[rows // num_loads]])
    by_kind = np.lexsort(alike)
    is_first = np.ones(rows.size, dtype=np.bool_)
    is_first[1:] = (alike[:, by_kind[1:]] != alike[:, by_kind[:-1]]).any(axis=0)
    kept = np.sort(by_kind[is_first])
    return np.asarray(rows[kept][np.lexsort(-points[::-1, kept])], dtype=np.int64)


class _RoleRates:
    """Rates of one role's pools: float64 [B, P, L], by backend, role configuration and limits; inf without data."""

    def __init__(self, space: Space, branch: Branch, place: int, role: str, load: Load, facts: Facts) -> None:
        self.limits = tuple(dict.fromkeys(each[place] for each in branch.batching))
        self._space, self._branch, self._role, self._load, self._facts = (
            space.config.search_space,
            branch,
            role,
            load,
            facts,
        )
        size = (len(branch.backends), len(branch.roles), len(self.limits))
        self.rate, self.prompt_ms, self.step_ms = np.full(size, np.inf), np.zeros(size), np.zeros(size)
        # Of the largest fleet that the budget allows, and of a single engine: what a planner can make of a pool.
        self.largest_rate, self.engine_rate = np.full(size, np.inf), np.full(size, np.inf)
        self._ranks = np.array([role.replicas * role.attention_dp for role in branch.roles], dtype=np.float64)
        self._curves: list[Curve] = []
        self._curve_of = np.full(size, -1, dtype=np.int64)

    def fill(self, times: TimesOf, wanted: NDArray[np.int64]) -> None:
        """Args: wanted, int64 [W, 2], pairs of backend and role configuration that occur in cells."""
        shapes = [role.shape for role in self._branch.roles]
        kinds: dict[tuple[int, ParallelShape], list[int]] = {}
        for backend, role in wanted.tolist():
            kinds.setdefault((backend, shapes[role]), []).append(role)
        for (backend, shape), members in kinds.items():
            for at, limits in enumerate(self.limits):
                best = self._curve(times, self._branch.backends[backend], shape, limits)
                if best is not None:
                    self._curve_of[backend, members, at] = len(self._curves)
                    self._curves.append(best)
                    engines = np.array([self._space.gpu_budget // shape.gpus or 1, 1], dtype=np.float64)
                    # A rate takes a search of many small steps: one for all numbers of ranks.
                    rates = self._rate(np.concatenate([self._ranks[members], engines * shape.attention_dp]), best)
                    self.rate[backend, members, at] = rates[:-2]
                    self.largest_rate[backend, members, at], self.engine_rate[backend, members, at] = rates[-2:]
                    self.prompt_ms[backend, members, at] = self._load.isl * best.token_ms
                    self.step_ms[backend, members, at] = best.step_ms

    def steady(
        self, picked: tuple[NDArray[np.int64], ...], in_flight: NDArray[np.float64], offered: NDArray[np.float64] | None
    ) -> Steady:
        """The steady state of every group; NaN without data.

        Args: picked, indices of the groups' pools, [G] each; in_flight, float64 [G, S]; offered, what the prefill
        engines hand over at most, requests per ms, float64 [G].
        """
        rate, pace = np.full(in_flight.shape, np.nan), np.full(in_flight.shape, np.nan)
        of, ranks = self._curve_of[picked], self._ranks[picked[1]][:, None]
        for number, best in enumerate(self._curves):
            rows = of == number
            here = ranks[rows], best, in_flight[rows], self._load
            found = agg_steady(*here) if offered is None else decode_steady(*here, offered[rows][:, None])
            rate[rows], pace[rows] = found
        return rate, pace

    def _rate(self, ranks: NDArray[np.float64], best: Curve) -> NDArray[np.float64]:
        rate = {"agg": bounds.agg_rate, "prefill": bounds.prefill_rate, "decode": bounds.decode_rate}[self._role]
        return np.asarray(np.minimum(rate(ranks, best, self._load), self._load.arrival_rate))

    def _curve(self, times: TimesOf, backend: str, shape: ParallelShape, limits: Batching) -> Curve | None:
        block = getattr(self._space, f"{self._role}_block_size")
        fraction = getattr(self._space, f"{self._role}_gpu_memory_utilization")
        tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        try:
            blocks = blocks_per_rank(self._facts.kv_tokens(backend, shape, tokens, seqs, fraction), block)
            if self._load.lengths is not None and blocks * block < self._load.lengths[1]:
                return None  # It rejects requests, and no bound holds for what it completes.
            most = bounds.most_running(self._load, seqs, blocks, block)
            chunk = max(1, bounds.SGLANG_CHUNK // shape.attention_dp) if backend == "sglang" else tokens
            needs = {"decodes": self._role != "prefill", "prefills": self._role != "decode"}
            return bounds.curve(times(backend, shape), self._load, most, chunk, **needs)
        except EvaluationError:
            return None


def _gpus_per_request(
    branch: Branch, rates: Sequence[NDArray[np.float64]], picked: Sequence[Any]
) -> NDArray[np.float64]:
    """GPUs that one engine per role keeps busy at the rate of the slower: float64 [C, L].

    A planner can give each role just the engines it needs, so a request takes of each role no more GPU time than an
    engine takes that has all requests to itself.

    Args: rates, of one engine, by role: [C, L]. picked: indices of their role configurations.
    """
    widths = np.array([role.shape.gpus for role in branch.roles], dtype=np.float64)
    slower = np.minimum.reduce(rates)
    total: NDArray[np.float64] = np.zeros(slower.shape)
    for rate, where in zip(rates, picked, strict=True):
        busy = np.divide(slower, rate, out=np.ones_like(slower), where=np.isfinite(rate))
        total += widths[where[1]] * busy
    return total
