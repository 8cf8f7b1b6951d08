"""Planner presets and the dicts that may replace them, as data.

Source: search.md, sections 1.3 and 5.2.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from app.schemas.block import Block, Checked, OneOf, refuse

Seconds = Annotated[int, Field(gt=0, le=10_000_000)]
Count = Annotated[int, Field(gt=0, le=10_000_000)]


class ScalingPolicy(Block):
    """When the planner rescales: by forecast throughput, by present load, or both."""

    enable_throughput_scaling: bool
    enable_load_scaling: bool
    throughput_adjustment_interval_seconds: Seconds
    load_adjustment_interval_seconds: Seconds


class FpmSampling(Block):
    """How many forward-pass records the planner keeps, and in how many buckets (a perfect square)."""

    max_num_fpm_samples: Count
    fpm_sample_bucket_size: Annotated[int, OneOf(tuple(n * n for n in range(1, 33)))]


class LoadSensitivity(Block):
    """How reluctant the planner is to scale down, percent, and how many records it wants first."""

    load_scaling_down_sensitivity: Annotated[int, Field(ge=0, le=100)]
    load_min_observations: Count


class LoadPredictor(Block):
    """One forecaster and its parameters; what is left out takes the planner's default."""

    load_predictor: Annotated[str, OneOf(("constant", "arima", "prophet", "kalman"))]
    load_predictor_log1p: bool = False
    prophet_window_size: Count = 50
    kalman_q_level: Annotated[float, Field(gt=0)] = 1.0
    kalman_q_trend: Annotated[float, Field(gt=0)] = 0.1
    kalman_r: Annotated[float, Field(gt=0)] = 10.0
    kalman_min_points: Count = 5


def _policy(throughput: bool, load: bool, throughput_s: int = 180, load_s: int = 5) -> ScalingPolicy:
    return ScalingPolicy(
        enable_throughput_scaling=throughput,
        enable_load_scaling=load,
        throughput_adjustment_interval_seconds=throughput_s,
        load_adjustment_interval_seconds=load_s,
    )


SCALING_POLICIES: dict[str, ScalingPolicy] = {
    "disabled": _policy(False, False),
    "throughput_180_5": _policy(True, False, 180, 5),
    "throughput_600_5": _policy(True, False, 600, 5),
    "load_180_5": _policy(False, True, 180, 5),
    "load_180_10": _policy(False, True, 180, 10),
    "hybrid_180_5": _policy(True, True, 180, 5),
    "hybrid_600_5": _policy(True, True, 600, 5),
}

FPM_SAMPLINGS: dict[str, FpmSampling] = {
    name: FpmSampling(max_num_fpm_samples=samples, fpm_sample_bucket_size=bucket)
    for name, samples, bucket in (("small", 32, 4), ("default", 64, 16), ("large", 128, 16), ("fine", 128, 64))
}

LOAD_SENSITIVITIES: dict[str, LoadSensitivity] = {
    name: LoadSensitivity(load_scaling_down_sensitivity=percent, load_min_observations=observations)
    for name, percent, observations in (("aggressive", 70, 3), ("default", 80, 5), ("conservative", 90, 8))
}

_KALMAN_REACTIVE: dict[str, Any] = {
    "kalman_q_level": 10.0,
    "kalman_q_trend": 1.0,
    "kalman_r": 5.0,
    "kalman_min_points": 3,
}

LOAD_PREDICTORS: dict[str, LoadPredictor] = {
    "constant_last": LoadPredictor(load_predictor="constant"),
    "arima_raw": LoadPredictor(load_predictor="arima"),
    "arima_log1p": LoadPredictor(load_predictor="arima", load_predictor_log1p=True),
    "prophet_w20_raw": LoadPredictor(load_predictor="prophet", prophet_window_size=20),
    "prophet_w20_log1p": LoadPredictor(load_predictor="prophet", prophet_window_size=20, load_predictor_log1p=True),
    "prophet_w50_raw": LoadPredictor(load_predictor="prophet"),
    "prophet_w50_log1p": LoadPredictor(load_predictor="prophet", load_predictor_log1p=True),
    "kalman_default_raw": LoadPredictor(load_predictor="kalman"),
    "kalman_default_log1p": LoadPredictor(load_predictor="kalman", load_predictor_log1p=True),
    "kalman_reactive_raw": LoadPredictor(load_predictor="kalman", **_KALMAN_REACTIVE),
    "kalman_reactive_log1p": LoadPredictor(load_predictor="kalman", load_predictor_log1p=True, **_KALMAN_REACTIVE),
}


def _entry(kind: type[Block], presets: Mapping[str, Block]) -> Checked:
    """One element of a composite knob: a preset's id, or a dict in place of the preset."""
    legal = OneOf(tuple(presets))

    def check(value: Any) -> Any:
        if isinstance(value, dict | kind):
            return kind.model_validate(value)
        if isinstance(value, str):
            return legal.check(value)
        raise refuse("not_a_preset", "is neither a preset's name nor an object", f"use {', '.join(presets)} or a dict")

    def schema() -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": list(presets)}, kind.model_json_schema()]}

    return Checked(check, schema)


PolicyEntry = Annotated[str | ScalingPolicy, _entry(ScalingPolicy, SCALING_POLICIES)]
FpmEntry = Annotated[str | FpmSampling, _entry(FpmSampling, FPM_SAMPLINGS)]
SensitivityEntry = Annotated[str | LoadSensitivity, _entry(LoadSensitivity, LOAD_SENSITIVITIES)]
PredictorEntry = Annotated[str | LoadPredictor, _entry(LoadPredictor, LOAD_PREDICTORS)]
