"""The planners of the main study: scaling policies with everything a replay needs beside the engines.

Source: search.md, sections 1.3, 4.1 and 5.3.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from app.schemas.policies import kept_policies, optimization_target
from app.schemas.presets import FPM_SAMPLINGS, LOAD_SENSITIVITIES
from app.schemas.study import SmartSearchConfig
from workers.planner.settings import PlannerSettings

PlannerFields = dict[str, Any]
Predictors = Mapping[int, Mapping[str, Any]]
"""Fields of the load predictor chosen for each throughput interval, s."""


def scales(planner: PlannerFields | None) -> bool:
    """Whether a planner may change the fleet."""
    fields = planner or {}
    return bool(fields.get("enable_throughput_scaling") or fields.get("enable_load_scaling"))


def acting(planner: PlannerFields | None) -> PlannerSettings | None:
    """The settings that act in a replay; equal ones make equal decisions. None for a static deployment."""
    return PlannerSettings.of(planner).acting() if planner is not None and scales(planner) else None


def planners(config: SmartSearchConfig, predictors: Predictors) -> tuple[PlannerFields | None, ...]:
    """Every planner of the study; None stands for a static deployment.

    A scaling policy multiplies with the sampling and sensitivity knobs; the load predictor was settled beforehand.
    """
    space = config.search_space
    options: list[PlannerFields | None] = []
    for policy in kept_policies(space, config.goal):
        if not (policy.enable_throughput_scaling or policy.enable_load_scaling):
            options.append(None)
            continue
        forecast = predictors.get(policy.throughput_adjustment_interval_seconds, {})
        rest = _limits(config) | (dict(forecast) if policy.enable_throughput_scaling else {})
        options += [
            {**policy.model_dump(), **fpm, **sensitivity, **rest}
            for fpm, sensitivity in product(
                _resolved(space.planner_fpm_sampling, FPM_SAMPLINGS),
                _resolved(space.planner_load_sensitivity, LOAD_SENSITIVITIES),
            )
        ]
    return tuple(options)


def _limits(config: SmartSearchConfig) -> PlannerFields:
    """What is the same for every planner of the study: target, bounds, and the start-up time of an engine."""
    space, sla = config.search_space, config.goal.sla
    fields = {
        "optimization_target": optimization_target(config.goal),
        "max_gpu_budget": space.gpu_budget,
        "min_gpu_budget": space.min_gpu_budget,
        "min_endpoint": space.min_endpoint,
        "prefill_min_endpoint": space.prefill_min_endpoint,
        "decode_min_endpoint": space.decode_min_endpoint,
        "max_throughput_scaling_replicas": space.max_throughput_scaling_replicas,
        "ttft_ms": sla.ttft_ms if sla else None,
        "itl_ms": sla.itl_ms if sla else None,
        "startup_s": space.startup_time,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _resolved(entries: Iterable[Any], presets: dict[str, Any]) -> list[PlannerFields]:
    dumped = [(presets[entry] if isinstance(entry, str) else entry).model_dump() for entry in entries]
    return list({repr(sorted(each.items())): each for each in dumped}.values())
