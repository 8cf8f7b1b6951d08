"""What a planner of one replay is told: policy, goal, bounds, sampling, sensitivity and predictor.

Source: search spec, section 5.2. Defaults are those of the modelled planner.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from app.schemas.presets import LOAD_PREDICTORS, LoadPredictor
from workers.planner.observation import Role

Target = Literal["throughput", "latency", "load", "sla"]
NO_FLOOR = -1


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """One scaling policy with everything it needs beside the engines' facts.

    max_gpu_budget, min_gpu_budget: GPUs of the whole deployment, hard above, `NO_FLOOR` = no lower one.
    min_endpoint: fewest engines per role, unless the role has its own. ttft_ms, itl_ms: read under the target sla.
    startup_s: from decision to readiness of an added engine. max_throughput_scaling_replicas: largest change of one
    throughput decision, engines per role.
    """

    optimization_target: Target = "throughput"
    enable_throughput_scaling: bool = False
    enable_load_scaling: bool = True
    throughput_adjustment_interval_seconds: int = 180
    load_adjustment_interval_seconds: int = 5
    max_gpu_budget: int = 8
    min_gpu_budget: int = NO_FLOOR
    min_endpoint: int = 1
    prefill_min_endpoint: int | None = None
    decode_min_endpoint: int | None = None
    max_throughput_scaling_replicas: int = 8
    ttft_ms: float = 500.0
    itl_ms: float = 50.0
    max_num_fpm_samples: int = 64
    fpm_sample_bucket_size: int = 16
    load_scaling_down_sensitivity: int = 80
    load_min_observations: int = 5
    startup_s: float = 0.0
    predictor: LoadPredictor = field(default_factory=lambda: LOAD_PREDICTORS["arima_raw"])

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "PlannerSettings":
        """Settings from a candidate's planner fields; what is missing or None takes the default.

        Raises: TypeError for an unknown field.
        """
        given = {name: value for name, value in document.items() if value is not None}
        own = {each for each in LoadPredictor.model_fields if each in given}
        if own:
            given["predictor"] = LoadPredictor.model_validate({name: given.pop(name) for name in own})
        unknown = set(given) - {each.name for each in fields(cls)}
        if unknown:
            raise TypeError(f"unknown planner fields: {', '.join(sorted(unknown))}")
        return cls(**given)

    def acting(self) -> "PlannerSettings":
        """The same with everything at its default that is never read."""
        idle: set[str] = set()
        if self.optimization_target != "sla":
            idle |= {
                "enable_throughput_scaling",
                "enable_load_scaling",
                "max_num_fpm_samples",
                "fpm_sample_bucket_size",
            }
            idle |= {"load_min_observations", "ttft_ms", "itl_ms"}
        if not self.scales_by_throughput:
            idle |= {"throughput_adjustment_interval_seconds", "max_throughput_scaling_replicas", "predictor"}
        if not self.scales_by_load:
            idle.add("load_adjustment_interval_seconds")
        if self.optimization_target != "sla" or not self.scales_by_load:
            idle.add("load_scaling_down_sensitivity")
        defaults = PlannerSettings()
        return replace(self, **{name: getattr(defaults, name) for name in idle})

    @property
    def scales_by_throughput(self) -> bool:
        """Forecasts act under the target sla alone."""
        return self.enable_throughput_scaling and self.optimization_target == "sla"

    @property
    def scales_by_load(self) -> bool:
        """Every other target forces load scaling on."""
        return self.enable_load_scaling or self.optimization_target != "sla"

    @property
    def interval_s(self) -> int:
        """Between ticks: the greatest common divisor of the enabled loops' intervals."""
        enabled = []
        if self.scales_by_throughput:
            enabled.append(self.throughput_adjustment_interval_seconds)
        if self.scales_by_load:
            enabled.append(self.load_adjustment_interval_seconds)
        return math.gcd(*enabled)

    @property
    def sensitivity(self) -> float:
        """Share of a bound that may be used up after a scale-down."""
        return self.load_scaling_down_sensitivity / 100.0

    def floor(self, role: Role) -> int:
        """Fewest engines of a role; an aggregated engine decodes."""
        own = self.prefill_min_endpoint if role == "prefill" else self.decode_min_endpoint
        return self.min_endpoint if own is None else own
