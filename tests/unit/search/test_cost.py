"""What replays are said to cost before they run."""

from app import limits
from app.schemas.study import SmartSearchConfig
from tests.unit.search.world import config_of
from workers.plan import plan
from workers.search import cost


def per_trial(**blocks: dict[str, object]) -> float:
    config: SmartSearchConfig = config_of(**blocks)
    known = plan(config)
    return known.estimated_seconds / known.budget.expected_trials


def test_more_requests_arrivals_two_roles_and_routing_cost_more() -> None:
    closed = {"concurrency": 100, "num_request_ratio": 100}
    plain = per_trial(workload=closed)
    assert per_trial(workload={**closed, "num_request_ratio": 300}) > 2 * plain
    assert per_trial(workload={"concurrency": None, "request_rate": 100, "num_request_ratio": 100}) > plain
    assert per_trial(workload=closed, search_space={"deployment_mode": ["disagg"]}) > plain
    assert per_trial(workload=closed, search_space={"router_mode": ["kv_router"]}) > plain


def test_long_answers_at_low_concurrency_cost_more_than_short_ones() -> None:
    few = {"concurrency": 2, "num_request_ratio": 100}
    assert per_trial(workload={**few, "osl": 500}) > per_trial(workload={**few, "osl": 12})


def test_the_first_look_of_the_limits_is_never_below_the_estimate() -> None:
    dearest_s = max(cost._REQUEST_S.values()) + max(cost._ROUTED_S.values()) + cost._SCALED_S
    assert dearest_s <= limits._REQUEST_S
    assert (limits._TRIAL_S, limits._PASS_S) == (cost._TRIAL_S, cost._PASS_S)
