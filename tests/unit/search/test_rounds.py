"""Rounds and budgets worked out from history; how a front grows."""

import numpy as np
import pytest

from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment
from app.schemas.status import TrialStatus
from app.schemas.sweep import Sweep
from workers.search.history import Told
from workers.search.hypervolume import Reach, has_settled, hypervolume
from workers.search.loads import beside, level_of
from workers.search.rounds import TRIALS_PER_RESULT, allowance

SWEEP = Sweep(max_rounds=2, candidates_per_round=3)
ROLE = RoleDeployment(shape=ParallelShape(tp=1), replicas=1, max_num_batched_tokens=8192, max_num_seqs=256)


def told(number: int, feasible: bool = True, mode: str = "agg") -> Told:
    pools = {"agg": ROLE} if mode == "agg" else {"prefill": ROLE, "decode": ROLE}
    deployment = Deployment.model_validate(
        {
            "mode": mode,
            "backend": "vllm",
            "model_name": "m",
            "hardware_sku": "h",
            **{k: v.model_dump() for k, v in pools.items()},
        }
    )
    return Told(number, deployment, TrialStatus.FEASIBLE if feasible else TrialStatus.INFEASIBLE)


def test_a_round_asks_for_exactly_what_is_missing() -> None:
    history = [told(0), told(1, feasible=False), told(2)]
    assert allowance(SWEEP, ["agg"], history, [False]).trials == 1


def test_a_branch_ends_after_its_rounds_and_the_next_begins() -> None:
    history = [told(number) for number in range(6)]
    assert allowance(SWEEP, ["agg"], history, [False]).branch is None
    assert allowance(SWEEP, ["agg", "disagg"], history, [False, False]).branch == 1


def test_a_round_that_stays_short_ends_its_branch() -> None:
    history = [told(number, feasible=False) for number in range(3 * TRIALS_PER_RESULT)]
    assert allowance(SWEEP, ["agg"], history, [False]).branch is None


def test_a_repeat_does_not_count_as_a_result() -> None:
    deployment = told(0).deployment
    history = [Told(n, deployment, TrialStatus.FEASIBLE, cache_hit=n > 0) for n in range(2)]
    assert allowance(SWEEP, ["agg"], history, [False]).trials == 2


def test_max_trials_limits_all_branches_together() -> None:
    sweep = Sweep(max_rounds=9, candidates_per_round=3, max_trials=4)
    assert allowance(sweep, ["agg"], [told(n) for n in range(3)], [False]).trials == 1


def test_finer_loads_lie_beside_a_leader_only() -> None:
    assert beside([128], [0, 128, 256], 2) == [64, 192]
    assert beside([0], [0, 128, 256], 2) == [64]
    assert beside([64], [0, 64, 128, 256], 2) == []
    assert [level_of(step) for step in (0, 256, 128, 64, 1)] == [0, 0, 1, 2, 8]


def test_a_front_that_hardly_moves_has_settled() -> None:
    before = np.array([(1.0, 10.0), (10.0, 1.0)])
    assert has_settled(before, before)
    assert has_settled(before, np.vstack([before, (1.0, 10.01)]))
    assert not has_settled(before, np.vstack([before, (7.0, 7.0)]))


def test_a_front_of_three_objectives_moves_when_a_point_lies_beyond_it() -> None:
    before = np.array([(1.0, 10.0, 5.0), (10.0, 1.0, 5.0)])
    assert has_settled(before, np.vstack([before, (1.0, 9.0, 5.0)]))
    assert not has_settled(before, np.vstack([before, (1.0, 10.0, 7.0)]))


def test_what_points_add_is_the_area_between_them_and_the_front() -> None:
    front = [(4.0, 1.0), (1.0, 4.0)]
    reach = Reach(np.array(front))
    assert hypervolume(front, (0.0, 0.0)) == 7.0
    assert reach.share_of(np.array([2.0, 2.0])) == pytest.approx(1 / 7)
    reach.add(np.array([2.0, 2.0]))
    assert reach.share_of(np.array([2.0, 2.0])) == 0.0
    assert reach.share_of(np.array([-1.0, 5.0])) == 0.0
