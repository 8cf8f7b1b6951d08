"""The reference trial of the speed figures, from deployment to verdict with the compiled replay, against the peer."""

import pytest

from app.schemas.deployment import RouterConfig
from app.schemas.status import TrialStatus
from tests.golden.files import case
from tests.unit.deployments import SMALL_LOAD, agg, disagg, role, study
from workers.evaluate import evaluate_many

CASE = case("reference-trial", "reference-trial")


def test_reference_trial_agrees_with_the_peer_within_two_permille() -> None:
    workload = {"isl": 4000, "osl": 1000, "concurrency": 256, "num_request_ratio": 10}
    (verdict,) = evaluate_many(study(workload), [agg(tp=2, replicas=2)], None, lambda: False)
    assert verdict.status is TrialStatus.FEASIBLE
    measured = {name: verdict.metrics[name] for name in CASE["expected"]}
    assert measured == pytest.approx(CASE["expected"], rel=2e-3)


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("router", ["round_robin", "kv_router"])
def test_disaggregated_and_routed_deployments_become_feasible_verdicts(backend: str, router: str) -> None:
    pools = {"backend": backend, "router": RouterConfig(mode=router)}
    deployments = [disagg(role(tp=2), role(tp=2, replicas=2), **pools), agg(replicas=2, **pools)]
    space = {"deployment_mode": ["agg", "disagg"], "backend": [backend]}
    for verdict in evaluate_many(study(SMALL_LOAD, **space), deployments, None, lambda: False):
        assert verdict.status is TrialStatus.FEASIBLE, verdict.reason
        assert verdict.metrics["completed_requests"] == 4
