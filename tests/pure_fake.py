"""A small deterministic stand-in for the pure half, so that the thin half is tested by itself and fast.

A study's labels tell it what to do (all optional): `trials` in all, `trial_ms` of sleep each, `round` trials at most,
`fail` every n-th trial, `rejected` requests of trial 1, `crash` the process at that trial number, `hang`
at that trial until told to stop, be `deaf` at that trial: hang for ever, also when the leaders are checked
(`deaf_check`).
"""

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from app.ids import fingerprint
from app.schemas.advice import Warned
from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment
from app.schemas.plan import BudgetPlan, ContextPlan, LoadPlan, Plan
from app.schemas.status import ReasonCode, TrialStatus
from workers.search.history import Coverage, Proposal, Told
from workers.stability import Stability
from workers.verdict import Reason, Verdict


def label(config: Any, name: str, default: int = 0) -> int:
    """A number among the study's labels."""
    return int(config.labels.get(name, default))


def deployment(number: int) -> Deployment:
    """The number-th point of the space."""
    role = RoleDeployment(
        shape=ParallelShape(tp=1 + number % 2), replicas=1 + number % 4, max_num_batched_tokens=2048, max_num_seqs=64
    )
    return Deployment(
        mode="agg", backend="vllm", model_name="m", hardware_sku="h", agg=role, context_length=1000 + number
    )


def plan(config: Any, trace: Any = None, content: Any = None) -> Plan:
    """As many trials as the labels say."""
    num = label(config, "trials", 12)
    return Plan(
        branches=[],
        excluded=[],
        kv_capacity=[],
        load=LoadPlan(shape="concurrency"),
        context=ContextPlan(limit_tokens=1, longest_request_tokens=None, num_requests_over=None),
        combinations=num,
        continuous=False,
        algorithm="auto",
        budget=BudgetPlan(whole_space=True, max_rounds=None, round_size=None, max_trials=None, expected_trials=num),
        estimated_seconds=num * max(label(config, "trial_ms"), 1) / 1000,
        warnings=[],
        perf_data={"package": "fake", "version": "1"},
        problem={"type": "urn:spica:problem:planted", "title": "t", "detail": "d"} if num == 0 else None,
    )


class Search:
    """Every point in turn."""

    def __init__(self, config: Any, plan: Any, seed: int) -> None:
        self._num = label(config, "trials", 12)
        self._round = label(config, "round", 10**6)
        self._repeat = label(config, "repeat")

    def ask(self, history: Sequence[Told], n: int, should_stop: Callable[[], bool]) -> list[Proposal]:
        """The next points; with the label `repeat`, the second round begins with as many old ones."""
        start = len({told.deployment for told in history})
        fresh = [deployment(number) for number in range(start, min(self._num, start + min(n, self._round)))]
        old = [deployment(number) for number in range(self._repeat)] if fresh and history else []
        return [
            Proposal(each, {"context": float(each.context_length or 0), "asked": len(history)})
            for each in (*old, *fresh)
        ]

    def left(self, history: Sequence[Told]) -> int:
        """What was not told."""
        return self._num - len({told.deployment for told in history})

    def coverage(self, history: Sequence[Told]) -> Coverage:
        """All that were told."""
        num = len({told.deployment for told in history})
        return Coverage(num, 0, 0, self._num, num == self._num)


def evaluate_many(
    config: Any, deployments: Sequence[Deployment], trace: Any, should_stop: Callable[[], bool]
) -> Iterator[Verdict]:
    """A verdict from the deployment's fingerprint."""
    for each in deployments:
        number = (each.context_length or 0) - 1000
        if number == label(config, "crash", -1):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == label(config, "deaf", -1):
            while True:
                time.sleep(0.1)
        if number == label(config, "error", -1):
            raise RuntimeError("planted")
        yield _verdict(config, each, number, should_stop)


def _verdict(config: Any, each: Deployment, number: int, should_stop: Callable[[], bool]) -> Verdict:
    started = time.monotonic()
    hangs = number == label(config, "hang", -1)
    while hangs or time.monotonic() - started < label(config, "trial_ms") / 1000:
        if should_stop():
            return Verdict(TrialStatus.TIMED_OUT, Reason(ReasonCode.EXCEEDED_RUNTIME, "over its time"))
        time.sleep(0.001)
    every = label(config, "fail")
    if every and number % every == 0:
        return Verdict(TrialStatus.FAILED, Reason(ReasonCode.REPLAY_ERROR, "planted"))
    every = label(config, "infeasible", 5)
    if every and number % every == 0:
        return Verdict(TrialStatus.INFEASIBLE, Reason(ReasonCode.NO_KV_BUDGET, "no room"))
    score = int(fingerprint(each.model_dump(mode="json"))[:4], 16) / 7
    values = (score,) if not config.goal.is_pareto else (score, float(number % 50))
    latency_ms = 1000 / (1 + score)
    metrics = {"output_throughput_tok_s": score, "mean_ttft_ms": None, "mean_e2e_latency_ms": latency_ms}
    report: dict[str, Any] = {"metrics": metrics, "timeline": {"t_ms": list(range(200))}}
    wall_s = time.monotonic() - started
    met = None if config.goal.sla is None else latency_ms <= (config.goal.sla.e2e_ms or 0)
    rejected = label(config, "rejected") if number == 1 else 0
    return Verdict(
        TrialStatus.FEASIBLE, None, score, values, {"concurrency": 8}, metrics, report, wall_s, rejected, met
    )


def stability(
    config: Any, leaders: Sequence[Deployment], trace: Any, should_stop: Callable[[], bool] = lambda: False
) -> Stability:
    """One variation per leader, and one warning; with the label `deaf_check` it hangs for ever."""
    while label(config, "deaf_check"):
        time.sleep(0.1)
    row = {"variation": "planted", "load_ratio": 0.9, "arrival_seed": None, "objectives": None, "rank": 1}
    return Stability(({"variations": [row]},) * len(leaders), (Warned(pointer="/workload", detail="planted"),))


def install(put: Callable[[object, str, object], None] = setattr) -> None:
    """Put the stand-ins where the thin half takes the pure one from."""
    conductor, chunk = importlib.import_module("workers.conductor"), importlib.import_module("workers.chunk")
    put(conductor, "make_plan", plan)
    put(conductor, "Search", Search)
    put(conductor, "stability", stability)
    put(chunk, "evaluate_many", evaluate_many)
    put(importlib.import_module("app.main"), "make_plan", plan)
